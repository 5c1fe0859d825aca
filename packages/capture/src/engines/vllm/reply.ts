import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, FinishReason, StopCause, VersionSpan } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { RoutedExperts } from '../../reply.ts';
import { assistantMessage, toolCallsFrom, toolCallsSchema } from '../chat/messages.ts';
import type { StreamedReply } from '../chat/reply-beginning.ts';
import { type IdScanner, type ScannedLogprobs, scanIds, scanLogprobs } from '../chat/reply-scan.ts';
import {
  abortedBeforeFirstToken,
  assertIdCount,
  assertReplyId,
  assertReplyModel,
  finishReasonFrom,
  idsFrom,
  idsSchema,
  invalidReply,
  isLogprob,
  logprobEntriesFrom,
  logprobFrom,
  parseReplyJson,
  parseWith,
  scannedLogprobsSchema,
  usageFrom,
  usageSchema,
  versionSpansFrom,
  versionsSchema,
} from '../chat/reply-tokens.ts';
import type { GenerateReply } from '../engine.ts';
import { foreignRoutingSchema, routedExpertsOf } from './routing.ts';

/** Prefix of a token id in the log-probability field `token`, where OpenAI's API has the token's text. vLLM writes it on request. */
const TOKEN_ID_PREFIX = 'token_id:';

export const stopReasonSchema = z.union([z.int(), z.string()]).nullish();

const messageSchema = z.object({
  content: z.string().nullish(),
  reasoning: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: toolCallsSchema,
});

const choiceSchema = z.object({
  message: messageSchema,
  finish_reason: z.string(),
  stop_reason: stopReasonSchema,
  prompt_token_ids: idsSchema,
  token_ids: idsSchema,
  logprobs: scannedLogprobsSchema,
  weight_versions: versionsSchema,
  routed_experts: foreignRoutingSchema,
});

const replySchema = z.object({
  id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.tuple([choiceSchema]),
  prompt_token_ids: idsSchema,
  usage: usageSchema,
});

/** Values that a reply must match, and the scanner that reads its token ids. */
export type ReplyContext = {
  readonly completionId: string;
  readonly sessionId: string;
  /** All names of the model that the server listed when the engine was registered. */
  readonly models: ReadonlySet<string>;
  readonly scanner: IdScanner;
};

/** The fields of a reply before they are checked. Streamed and complete replies are both converted to this form. */
export type ReplyFields = {
  readonly promptIds: Int32Array;
  readonly responseIds: Int32Array;
  /** The entries of `logprobs.content`, one for each response id. */
  readonly logprobs: readonly unknown[] | ScannedLogprobs | null | undefined;
  readonly versions: z.output<typeof versionsSchema>;
  readonly message: AssistantMessage;
  readonly finishReason: string;
  readonly stopReason: z.output<typeof stopReasonSchema>;
  readonly usage: z.output<typeof usageSchema>;
  readonly routedExperts?: RoutedExperts | null;
};

/**
 * A reply whose fields have been checked. `versionSpans` is `null` when the server does not report them; `VllmEngine` then adds one span.
 */
export type ParsedReply = Omit<GenerateReply, 'versionSpans' | 'logprobsMode'> & {
  readonly versionSpans: readonly VersionSpan[] | null;
};

/**
 * Checks the fields of a reply. Throws `engine_error`, which states what is wrong, for a reply that must not be trained on. Throws
 * `engine_unavailable` for a reply that was aborted before its first token, because the request can be retried without losing a token.
 */
export function checkedReply(fields: ReplyFields): ParsedReply {
  const { promptIds, responseIds } = fields;
  const finishReason = finishReasonFrom(fields.finishReason);
  const usage = usageFrom(fields.usage);
  assertIdCount('prompt_token_ids', promptIds.length, 'usage.prompt_tokens', usage.prompt_tokens);
  assertIdCount('token_ids', responseIds.length, 'usage.completion_tokens', usage.completion_tokens);
  if (responseIds.length === 0) {
    throw finishReason === 'abort'
      ? abortedBeforeFirstToken()
      : invalidReply('token_ids is empty: no token was sampled');
  }
  return {
    promptIds,
    responseIds,
    responseLogprobs: logprobsOf(fields.logprobs, responseIds),
    versionSpans: versionSpansFrom(fields.versions, responseIds.length),
    routedExperts: fields.routedExperts ?? null,
    message: fields.message,
    finishReason,
    stop: stopOf(fields.stopReason, finishReason, responseIds),
    usage,
  };
}

/**
 * Reads the log-probabilities of the sampled ids. They are checked without a schema, because one schema object per token costs more than
 * everything else in a reply.
 */
function logprobsOf(content: ReplyFields['logprobs'], ids: Int32Array): Float32Array {
  if (content === null || content === undefined) throw invalidReply('logprobs.content is missing');
  const columns = 'start' in content ? content : null;
  const entries = 'start' in content ? content.values : content;
  const count = ids.length;
  if (entries.length !== count) {
    throw invalidReply(`logprobs.content has ${entries.length} entries for ${count} token_ids`);
  }
  const logprobs = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    logprobs[i] = columns === null ? entryLogprob(entries[i], i, ids[i]) : columnLogprob(columns, i, ids[i]);
  }
  return logprobs;
}

function columnLogprob({ ids, values }: ScannedLogprobs, i: number, id: number | undefined): number {
  if (ids[i] !== id) {
    throw invalidReply(`logprobs.content.${i} is of ${TOKEN_ID_PREFIX}${ids[i]}, but token_ids.${i} is ${id}`);
  }
  const value = values[i];
  // The name of the field is made only for an error, because a reply has hundreds of values.
  return isLogprob(value) ? value : logprobFrom(value, `logprobs.content.${i}.logprob`);
}

function entryLogprob(entry: unknown, i: number, id: number | undefined): number {
  const fields = entry as { logprob?: unknown; token?: unknown; token_id?: unknown } | null;
  const value = typeof fields === 'object' && fields !== null ? fields.logprob : undefined;
  const logprob = logprobFrom(value, `logprobs.content.${i}.logprob`);
  const token = fields?.token;
  // Servers that do not honour return_tokens_as_token_ids send the token's text in this field, which cannot be compared with the id.
  if (typeof token === 'string' && token.startsWith(TOKEN_ID_PREFIX) && token !== `${TOKEN_ID_PREFIX}${id}`) {
    throw invalidReply(`logprobs.content.${i} is of ${token}, but token_ids.${i} is ${id}`);
  }
  const tokenId = fields?.token_id;
  if (typeof tokenId === 'number' && tokenId !== id) {
    throw invalidReply(`logprobs.content.${i} is of ${TOKEN_ID_PREFIX}${tokenId}, but token_ids.${i} is ${id}`);
  }
  return logprob;
}

/**
 * Determines which stop token or stop string ended a reply. vLLM leaves `stop_reason` null when the end-of-sequence token ended the reply,
 * and keeps that token in the ids.
 */
function stopOf(reason: ReplyFields['stopReason'], finish: FinishReason, ids: Int32Array): StopCause | null {
  if (typeof reason === 'string') return { kind: 'string', text: reason };
  if (typeof reason === 'number') return { kind: 'token', id: reason };
  const last = ids.at(-1);
  const isStopped = finish === 'stop' || finish === 'tool_calls';
  return isStopped && last !== undefined ? { kind: 'token', id: last } : null;
}

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
  return checkedReply({
    promptIds,
    responseIds,
    logprobs: logprobEntriesFrom(choice.logprobs?.content, logprobs),
    versions: choice.weight_versions,
    message: assistantMessageOf(choice.message),
    finishReason: choice.finish_reason,
    stopReason: choice.stop_reason,
    usage: reply.usage,
    routedExperts: routedExpertsOf(choice.routed_experts, promptIds.length + responseIds.length),
  });
}

/** Parses a reply of status 200 from a server that reports no token ids. Throws `engine_error` for an invalid reply. */
export function parseTextReply(body: Buffer, context: ReplyContext): ParsedReply {
  const reply = parseWith(replySchema, parseReplyJson(body, null));
  assertOwnReply(reply, context);
  const [choice] = reply.choices;
  const reason = choice.stop_reason;
  return {
    promptIds: new Int32Array(0),
    responseIds: new Int32Array(0),
    responseLogprobs: new Float32Array(0),
    versionSpans: [],
    routedExperts: null,
    message: assistantMessageOf(choice.message),
    finishReason: finishReasonFrom(choice.finish_reason),
    stop: typeof reason === 'string' ? { kind: 'string', text: reason } : null,
    usage: usageFrom(reply.usage),
  };
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
  return assistantMessageOf(reply.choices[0].message);
}

const derenderedChunkSchema = z.looseObject({
  chunk: z.looseObject({
    id: z.string().nullish(),
    model: z.string().nullish(),
    choices: z.tuple([
      z.looseObject({
        delta: z.looseObject({
          content: z.string().nullish(),
          reasoning: z.string().nullish(),
          reasoning_content: z.string().nullish(),
          tool_calls: z.array(z.unknown()).nullish(),
        }),
      }),
    ]),
  }),
});

/** Parses the chunk that vLLM's parsers made from the first ids of an incomplete reply. Throws as {@link parseDerendered} does. */
export function parseDerenderedChunk(body: Buffer, context: ReplyContext): StreamedReply {
  const { chunk } = parseWith(derenderedChunkSchema, parseReplyJson(body, null));
  assertOwnReply(chunk, context);
  const { content, reasoning, reasoning_content, tool_calls: calls } = chunk.choices[0].delta;
  return { reasoning: reasoning ?? reasoning_content ?? '', text: content ?? '', hasCalls: (calls ?? []).length > 0 };
}

function assistantMessageOf({
  content,
  reasoning,
  reasoning_content,
  tool_calls,
}: z.output<typeof messageSchema>): AssistantMessage {
  return assistantMessage(content ?? '', reasoning ?? reasoning_content ?? '', toolCallsFrom(tool_calls));
}

/** Adds to the error that the stream has lost token ids, so that the engine's later replies are not streamed. */
export function lostIdsError(error: FloeError): FloeError {
  return new FloeError(error.code, error.message, { ...error.details, lost_ids: true }, error.cause);
}
