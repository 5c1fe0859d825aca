import { FloeError } from '@floe-rl/core';
import type { FinishReason } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type CheckedReply, checkedReply, textReply } from '../chat/checked-reply.ts';
import {
  choiceFields,
  chunkChoiceFields,
  chunkFields,
  deltaSchema,
  messageFrom,
  messageSchema,
  replyFields,
  reportedStop,
  tokenChoiceFields,
} from '../chat/reply-fields.ts';
import { type IdScanner, scanIds, scanLogprobs } from '../chat/reply-scan.ts';
import {
  assertReplyModel,
  idsFrom,
  invalidReply,
  logprobEntriesFrom,
  parseReplyJson,
  parseWith,
  usageSchema,
} from '../chat/reply-tokens.ts';
import { type ReplyStream, StreamReader } from '../chat/stream-reader.ts';
import type { GenerateReply, ReplyListener } from '../engine.ts';

/**
 * Converts a finish reason. Throws `engine_error` for an unknown reason, and `engine_rejected` when the API's content filter withheld the
 * reply.
 */
function finishReasonOf(reason: string): FinishReason {
  switch (reason) {
    case 'stop':
    case 'length':
    case 'tool_calls':
      return reason;
    case 'content_filter':
      throw new FloeError('engine_rejected', "the API's content filter withheld the reply", { content_filter: true });
    default:
      throw invalidReply(`finish_reason is ${JSON.stringify(reason)}`);
  }
}

const replySchema = z.object({
  choices: z.tuple([z.object({ ...choiceFields, message: messageSchema })]),
  usage: usageSchema.nullish(),
});

/** Parses a reply of status 200 that is not streamed. Throws as {@link textReply} and `finishReasonOf` do. */
export function parseChatReply(body: Buffer): GenerateReply {
  const { choices, usage } = parseWith(replySchema, parseReplyJson(body, null));
  const [{ message, finish_reason }] = choices;
  return replyOf(
    textReply({ message: messageFrom(message), finishReason: finishReasonOf(finish_reason), reported: null, usage }),
  );
}

/** Adds the fields that replies without token ids have in common. */
function replyOf(reply: CheckedReply): GenerateReply {
  return { ...reply, versionSpans: [], routedExperts: null, logprobsMode: null };
}

const chunkSchema = z.object({
  ...chunkFields,
  choices: z
    .array(z.object({ ...chunkChoiceFields, delta: deltaSchema.nullish() }))
    .max(1)
    .nullish(),
});

const streamFormat = {
  schema: chunkSchema,
  finishReason: finishReasonOf,
  endsWithoutDone: true,
  // OpenRouter, for one, repeats the finish reason in the chunk with the usage.
  repeatsFinish: true,
};

/** Makes the reader of a streamed reply without token ids. `[DONE]` is not required, because some APIs do not send it. */
export function chatStream(listener: ReplyListener): ReplyStream<GenerateReply> {
  const reader = new StreamReader(streamFormat, { listener, prompt: null, owner: null });
  return { push: (bytes) => reader.push(bytes), reply: () => replyOf(textReply(reader.fields())) };
}

const tokenReplySchema = z.object({
  ...replyFields,
  choices: z.tuple([z.object({ ...tokenChoiceFields, message: messageSchema })]),
});

type TokenReplyContext = {
  readonly sessionId: string;
  /** The model names that replies may carry; `null` when any name is accepted. */
  readonly models: ReadonlySet<string> | null;
  readonly scanner: IdScanner;
  /** The stop strings of the request. */
  readonly stop: readonly string[];
};

/**
 * Parses a chat completion of status 200 with token ids and log-probabilities, as servers based on vLLM or SGLang write them. Also returns the
 * model's name in the reply. Throws `engine_error` for a reply that must not be trained on, and `engine_rejected` when the API's content
 * filter withheld the reply.
 */
export function parseTokenReply(
  body: Buffer,
  { sessionId, models, scanner, stop }: TokenReplyContext,
): { readonly reply: CheckedReply; readonly model: string | null } {
  const scanned = scanner.scan(body, 'prompt_token_ids', sessionId);
  const sampled = scanIds(body, 'token_ids');
  const logprobs = scanLogprobs(body);
  const json = parseWith(tokenReplySchema, parseReplyJson(body, scanned, logprobs, sampled));
  if (models !== null) assertReplyModel(json.model, models);
  const [choice] = json.choices;
  const reply = checkedReply({
    promptIds: idsFrom(json.prompt_token_ids ?? choice.prompt_token_ids, scanned, 'prompt_token_ids'),
    responseIds: idsFrom(choice.token_ids, sampled, 'token_ids'),
    logprobs: logprobEntriesFrom(choice.logprobs?.content, logprobs),
    versions: null,
    message: messageFrom(choice.message),
    finishReason: finishReasonOf(choice.finish_reason),
    reported: reportedStop(choice),
    ends: { stop, closeIds: [] },
    usage: json.usage,
  });
  return { reply, model: json.model ?? null };
}
