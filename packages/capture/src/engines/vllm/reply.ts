import type { AssistantMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { RoutedExperts } from '../../reply.ts';
import { type CheckedReply, checkedReply, textReply } from '../chat/checked-reply.ts';
import { assistantMessage, toolCallsFrom } from '../chat/messages.ts';
import type { StreamedReply } from '../chat/reply-beginning.ts';
import {
  choiceFields,
  messageFrom,
  messageSchema,
  replyFields,
  reportedStop,
  sampledTextOf,
  textFields,
  thinkingOf,
  tokenChoiceFields,
} from '../chat/reply-fields.ts';
import { type IdScanner, scanIds, scanLogprobs } from '../chat/reply-scan.ts';
import {
  assertReplyId,
  assertReplyModel,
  finishReasonFrom,
  idsFrom,
  invalidReply,
  logprobEntriesFrom,
  parseReplyJson,
  parseWith,
  versionsSchema,
} from '../chat/reply-tokens.ts';
import { foreignRoutingSchema, routedExpertsOf } from './routing.ts';

/** The fields of a choice that only vLLM has. */
export const vllmChoiceFields = { weight_versions: versionsSchema, routed_experts: foreignRoutingSchema };

const replySchema = z.object({
  ...replyFields,
  choices: z.tuple([z.object({ ...tokenChoiceFields, ...vllmChoiceFields, message: messageSchema })]),
});

/** Values that a reply must match, and the scanner that reads its token ids. */
export type ReplyContext = {
  readonly completionId: string;
  readonly sessionId: string;
  /** All names of the model that the server listed when the engine was registered. */
  readonly models: ReadonlySet<string>;
  readonly scanner: IdScanner;
};

/** A reply whose fields have been checked. `VllmEngine` adds one version span when the server reports none. */
export type ParsedReply = CheckedReply & { readonly routedExperts: RoutedExperts | null };

/** Parses a chat completion of status 200 that is not streamed. Throws as {@link checkedReply} does. */
export function parseChatReply(body: Buffer, context: ReplyContext): ParsedReply {
  const scanned = context.scanner.scan(body, 'prompt_token_ids', context.sessionId);
  const sampled = scanIds(body, 'token_ids');
  const logprobs = scanLogprobs(body);
  const reply = parseWith(replySchema, parseReplyJson(body, scanned, logprobs, sampled));
  assertOwnReply(reply, context);
  const [choice] = reply.choices;
  const promptIds = idsFrom(reply.prompt_token_ids ?? choice.prompt_token_ids, scanned, 'prompt_token_ids');
  const responseIds = idsFrom(choice.token_ids, sampled, 'token_ids');
  const checked = checkedReply({
    promptIds,
    responseIds,
    logprobs: logprobEntriesFrom(choice.logprobs?.content, logprobs),
    versions: choice.weight_versions,
    message: messageFrom(choice.message),
    finishReason: finishReasonFrom(choice.finish_reason),
    reported: reportedStop(choice),
    ends: null,
    usage: reply.usage,
  });
  return { ...checked, routedExperts: routedExpertsOf(choice.routed_experts, promptIds.length + responseIds.length) };
}

const textReplySchema = z.object({
  ...replyFields,
  choices: z.tuple([z.object({ ...choiceFields, message: messageSchema, stop_reason: tokenChoiceFields.stop_reason })]),
});

/** Parses a reply of status 200 from a server that reports no token ids. Throws `engine_error` for an invalid reply. */
export function parseTextReply(body: Buffer, context: ReplyContext): ParsedReply {
  const reply = parseWith(textReplySchema, parseReplyJson(body, null));
  assertOwnReply(reply, context);
  const [choice] = reply.choices;
  const message = messageFrom(choice.message);
  const finishReason = finishReasonFrom(choice.finish_reason);
  const checked = textReply({ message, finishReason, reported: choice.stop_reason, usage: reply.usage });
  return { ...checked, routedExperts: null };
}

type Named = { readonly id?: string | null | undefined; readonly model?: string | null | undefined };

/** Throws `engine_error` when a reply belongs to another call or comes from another model. */
export function assertOwnReply({ id, model }: Named, { completionId, models }: ReplyContext): void {
  assertReplyId(id, completionId);
  assertReplyModel(model, models);
}

const derenderedSchema = z.looseObject({
  id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.tuple([z.looseObject({ message: messageSchema })]),
  usage: z.record(z.string(), z.unknown()).nullish(),
});

/**
 * Parses the message that vLLM's parsers made from `idCount` token ids. Throws `engine_error` when the reply belongs to another call,
 * another model, or another number of ids.
 */
export function parseDerendered(body: Buffer, context: ReplyContext, idCount: number): AssistantMessage {
  const reply = parseWith(derenderedSchema, parseReplyJson(body, null));
  assertOwnReply(reply, context);
  const counted = reply.usage?.completion_tokens ?? idCount;
  if (counted !== idCount) {
    throw invalidReply(`the derendered message is of ${counted} ids, not of the ${idCount} that were sent`);
  }
  const { message } = reply.choices[0];
  return assistantMessage(sampledTextOf(message), thinkingOf(message), toolCallsFrom(message.tool_calls));
}

const derenderedChunkSchema = z.looseObject({
  chunk: z.looseObject({
    id: z.string().nullish(),
    model: z.string().nullish(),
    choices: z.tuple([
      z.looseObject({
        delta: z.looseObject({ ...textFields, tool_calls: z.array(z.unknown()).nullish() }),
      }),
    ]),
  }),
});

/** Parses the chunk that vLLM's parsers made from the first ids of an incomplete reply. Throws as {@link parseDerendered} does. */
export function parseDerenderedChunk(body: Buffer, context: ReplyContext): StreamedReply {
  const { chunk } = parseWith(derenderedChunkSchema, parseReplyJson(body, null));
  assertOwnReply(chunk, context);
  const { delta } = chunk.choices[0];
  return { reasoning: thinkingOf(delta), text: sampledTextOf(delta), hasCalls: (delta.tool_calls ?? []).length > 0 };
}
