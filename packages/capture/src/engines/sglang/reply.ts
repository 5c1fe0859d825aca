import type { AssistantMessage, FinishReason, StopCause, Usage, VersionSpan } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type IdScanner, MAX_TOKEN_ID } from '../chat/reply-scan.ts';
import {
  abortedBeforeFirstToken,
  assertIdCount,
  assertReplyId,
  finishReasonFrom,
  idsFrom,
  idsSchema,
  invalidReply,
  logprobFrom,
  parseReplyJson,
  parseWith,
  tokenIdsSchema,
  usageFrom,
  versionSpansFrom,
  versionsSchema,
} from '../chat/reply-tokens.ts';
import type { SampledTokens } from '../engine.ts';

export const matchedStopSchema = z.union([z.int(), z.string()]).nullish();

/** Schema of `meta_info` in the replies of `/generate`, and in those of chat completions that request it with `return_meta_info`. */
export const metaInfoSchema = z.looseObject({
  id: z.string().nullish(),
  finish_reason: z
    .looseObject({ type: z.string(), matched: matchedStopSchema, message: z.string().nullish() })
    .nullish(),
  prompt_tokens: z.int().min(0).nullish(),
  completion_tokens: z.int().min(0).nullish(),
  cached_tokens: z.int().nullish(),
  weight_version: z.union([z.string(), z.int()]).nullish(),
  weight_versions: versionsSchema,
  // The entries are checked without a schema, because one schema object per token costs more than everything else in a reply.
  output_token_logprobs: z.array(z.unknown()).nullish(),
  routed_experts: z.string().nullish(),
});

/** Version name that SGLang reports for weights that were not given a version. */
const UNNAMED_VERSION = 'default';

/** Ids of the call to which a reply must belong. */
export type ReplyCall = { readonly completionId: string; readonly sessionId: string };

/** The unchecked fields of a reply of `/generate` or of a chat completion. */
export type ReplyFields = {
  readonly promptIds: Int32Array;
  readonly responseIds: Int32Array;
  readonly responseLogprobs: Float32Array;
  readonly versions: z.output<typeof versionsSchema>;
  /** Policy version at the end of the reply; `null` when the server does not report it. */
  readonly endVersion: string | null;
  readonly finishReason: string;
  readonly matched: z.output<typeof matchedStopSchema>;
  readonly usage: Usage;
  /** The routed experts of a mixture-of-experts model as base64 of their numbers; `null` when the server does not report them. */
  readonly experts: string | null;
};

/**
 * A reply whose fields have been checked. Its version spans may be missing and its routed experts are not decoded yet; `SglangEngine`
 * completes them.
 */
export type SampledReply = Omit<SampledTokens, 'versionSpans' | 'routedExperts'> & {
  readonly promptIds: Int32Array;
  /** Version spans of the response's tokens; `null` when the server reports none. */
  readonly versionSpans: readonly VersionSpan[] | null;
  readonly endVersion: string | null;
  readonly finishReason: FinishReason;
  readonly stop: StopCause | null;
  readonly usage: Usage;
  readonly experts: string | null;
};

export type ChatReply = SampledReply & { readonly message: AssistantMessage };

/** Possible ends of a reply: the requested stop strings, and the token ids that are known to close a turn. */
export type ReplyEnds = { readonly stop: readonly string[]; readonly closeIds: readonly number[] };

/**
 * Checks the fields of a reply. Throws `engine_error`, which states what is wrong, for a reply that must not be trained on. Throws
 * `engine_unavailable` for a reply that was aborted before its first token, because the request can be retried without losing a token.
 */
export function checkedReply(fields: ReplyFields, ends: ReplyEnds): SampledReply {
  const { promptIds, responseIds, responseLogprobs, usage } = fields;
  const finishReason = finishReasonFrom(fields.finishReason);
  assertIdCount('the prompt', promptIds.length, 'prompt_tokens', usage.prompt_tokens);
  assertIdCount('the reply', responseIds.length, 'completion_tokens', usage.completion_tokens);
  if (responseIds.length === 0) {
    throw finishReason === 'abort' ? abortedBeforeFirstToken() : invalidReply('no token was sampled');
  }
  return {
    promptIds,
    responseIds,
    responseLogprobs,
    versionSpans:
      versionSpansFrom(fields.versions, responseIds.length)?.map((span) => ({
        ...span,
        version: versionOf(span.version),
      })) ?? null,
    endVersion: fields.endVersion,
    finishReason,
    stop: stopOf(fields.matched, finishReason, responseIds, ends),
    usage,
    experts: fields.experts,
  };
}

/**
 * Determines which stop token or stop string ended a reply. SGLang keeps the stop token in the ids. For a reply with tool calls it does not
 * report the cause; the last id is then taken as the stop token, unless it may be the end of a stop string.
 */
function stopOf(
  matched: ReplyFields['matched'],
  finish: FinishReason,
  ids: Int32Array,
  { stop, closeIds }: ReplyEnds,
): StopCause | null {
  if (finish !== 'stop' && finish !== 'tool_calls') return null;
  if (typeof matched === 'string') return { kind: 'string', text: matched };
  if (typeof matched === 'number') return { kind: 'token', id: matched };
  const last = ids.at(-1);
  if (last === undefined || (stop.length > 0 && !closeIds.includes(last))) return null;
  return { kind: 'token', id: last };
}

export type IdsAndLogprobs = { readonly ids: Int32Array; readonly logprobs: Float32Array };

/**
 * Reads `output_token_logprobs`, which has `[log-probability, id, text]` for each token. `ids` are the sampled ids from another field of
 * the reply, against which the entries are checked; `null` when the reply has no such field.
 */
export function readTuples(tuples: readonly unknown[], ids: readonly number[] | null): IdsAndLogprobs {
  const field = 'meta_info.output_token_logprobs';
  if (ids !== null && ids.length !== tuples.length) {
    throw invalidReply(`${field} has ${tuples.length} entries for ${ids.length} ids`);
  }
  const own = new Int32Array(tuples.length);
  const logprobs = new Float32Array(tuples.length);
  for (let i = 0; i < tuples.length; i++) {
    const tuple = tuples[i];
    const [value, id]: unknown[] = Array.isArray(tuple) ? tuple : [];
    if (typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id > MAX_TOKEN_ID) {
      throw invalidReply(`${field}.${i} has no token id`);
    }
    if (ids !== null && ids[i] !== id) {
      throw invalidReply(`${field}.${i} is of ${id}, but the reply's id ${i} is ${ids[i]}`);
    }
    own[i] = id;
    logprobs[i] = logprobFrom(value, `${field}.${i}`);
  }
  return { ids: own, logprobs };
}

/** Reads log-probabilities in OpenAI's notation, which contains no token ids, so that only the number of entries can be checked. */
export function readContent(content: readonly unknown[] | null | undefined, count: number): Float32Array {
  if (!content) throw invalidReply('logprobs.content is missing');
  if (content.length !== count) throw invalidReply(`logprobs.content has ${content.length} entries for ${count} ids`);
  return Float32Array.from(content, (entry, i) => {
    const value = typeof entry === 'object' && entry !== null && 'logprob' in entry ? entry.logprob : undefined;
    return logprobFrom(value, `logprobs.content.${i}.logprob`);
  });
}

/** Makes the usage of a reply. `cached` is the number of cached tokens; it is absent when the server does not report it. */
export function usageOf(prompt: number, completion: number, cached: number | null | undefined): Usage {
  const details = { cached_tokens: cached ?? null };
  return usageFrom({ prompt_tokens: prompt, completion_tokens: completion, prompt_tokens_details: details });
}

/** Returns the policy version that the server reported; `null` when its weights were not given a version. */
export function versionOf(reported: string | number | null | undefined): string | null {
  return reported === null || reported === undefined || reported === UNNAMED_VERSION ? null : String(reported);
}

/** Throws `engine_error` when the reply's prompt is not the one that was sent. */
export function assertSentPrompt(sent: Int32Array, used: Int32Array): void {
  if (sent.length !== used.length) {
    throw invalidReply(`it was prompted with ${used.length} ids, not the ${sent.length} sent`);
  }
  const at = sent.findIndex((id, index) => used[index] !== id);
  if (at < 0) return;
  throw invalidReply(`it was prompted with other ids than those sent: ${used[at]} for ${sent[at]} at ${at}`);
}

const nativeSchema = z.looseObject({
  text: z.string(),
  output_ids: tokenIdsSchema.nullish(),
  prompt_token_ids: idsSchema,
  meta_info: metaInfoSchema,
});

/** A parsed reply of `/generate`. Its text does not contain the stop token or stop string that ended it. */
type NativeReply = SampledReply & { readonly text: string };

/**
 * Parses a reply of `/generate` with status 200. `call.sent` are the token ids of the prompt that was sent. Throws as {@link checkedReply}
 * does.
 */
export function parseNativeReply(
  body: Buffer,
  call: ReplyCall & { readonly sent: Int32Array },
  scanner: IdScanner,
  ends: ReplyEnds,
): NativeReply {
  const scanned = scanner.scan(body, 'prompt_token_ids', call.sessionId);
  const reply = parseWith(nativeSchema, parseReplyJson(body, scanned));
  const meta = reply.meta_info;
  assertReplyId(meta.id, call.completionId);
  const { finish_reason: finish, prompt_tokens, completion_tokens } = meta;
  if (!finish) throw invalidReply('meta_info.finish_reason is missing');
  if (typeof prompt_tokens !== 'number') throw invalidReply('meta_info.prompt_tokens is missing');
  if (typeof completion_tokens !== 'number') throw invalidReply('meta_info.completion_tokens is missing');
  const { ids, logprobs } = readTuples(
    meta.output_token_logprobs ?? noTuples(reply.output_ids),
    reply.output_ids ?? null,
  );
  const echoed = reply.prompt_token_ids;
  const sampled = checkedReply(
    {
      // Releases without return_prompt_token_ids report only the number of ids, which is checked against those that were sent.
      promptIds: echoed === null || echoed === undefined ? call.sent : idsFrom(echoed, scanned, 'prompt_token_ids'),
      responseIds: ids,
      responseLogprobs: logprobs,
      versions: meta.weight_versions,
      endVersion: versionOf(meta.weight_version),
      finishReason: finish.type,
      matched: finish.matched,
      usage: usageOf(prompt_tokens, completion_tokens, meta.cached_tokens),
      experts: meta.routed_experts ?? null,
    },
    ends,
  );
  return { ...sampled, text: reply.text };
}

/**
 * Returns an empty list of log-probabilities for a reply without token ids. A reply that was aborted before its first token may lack the
 * list. Throws `engine_error` for any other reply.
 */
function noTuples(ids: readonly number[] | null | undefined): readonly unknown[] {
  if (ids?.length === 0) return [];
  throw invalidReply('meta_info.output_token_logprobs is missing');
}
