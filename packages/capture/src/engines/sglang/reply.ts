import type { AssistantMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type CheckedReply, checkedReply, type LogprobColumns, type ReplyEnds } from '../chat/checked-reply.ts';
import { stopReasonSchema } from '../chat/reply-fields.ts';
import { type IdScanner, MAX_TOKEN_ID } from '../chat/reply-scan.ts';
import {
  assertReplyId,
  finishReasonFrom,
  idsFrom,
  idsSchema,
  invalidReply,
  parseReplyJson,
  parseWith,
  tokenIdsSchema,
  type usageSchema,
  versionsSchema,
} from '../chat/reply-tokens.ts';

/**
 * Schema of `meta_info` in the replies of `/generate`. Replies of chat completions have the same object when the request asks for it with
 * `return_meta_info`.
 */
export const metaInfoSchema = z.looseObject({
  id: z.string().nullish(),
  finish_reason: z
    .looseObject({ type: z.string(), matched: stopReasonSchema, message: z.string().nullish() })
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

/** Name of the field with log-probabilities and ids, in errors. */
export const TUPLES_FIELD = 'meta_info.output_token_logprobs';

/** Version name that SGLang reports for weights that were not given a version. */
const UNNAMED_VERSION = 'default';

/** Ids of the call to which a reply must belong. */
export type ReplyCall = { readonly completionId: string; readonly sessionId: string };

/** The fields of a reply that only SGLang has. */
type OwnFields = {
  /** Policy version at the end of the reply; `null` when the server does not report it. */
  readonly endVersion: string | null;
  /** The routed experts of a mixture-of-experts model as base64 of their numbers; `null` when the server does not report them. */
  readonly experts: string | null;
};

/** A reply whose fields have been checked. Its routed experts are not decoded yet; `SglangEngine` decodes them. */
export type ChatReply = CheckedReply & OwnFields;

/** A checked reply whose message is parsed later. */
export type SampledReply = Omit<ChatReply, 'message'>;

/** Adds SGLang's own fields to a checked reply. Spans of weights that were not given a version are without a version. */
export function ownReply(reply: CheckedReply, fields: OwnFields): ChatReply {
  const spans = reply.versionSpans?.map((span) => ({ ...span, version: versionOf(span.version) }));
  return { ...reply, versionSpans: spans ?? null, ...fields };
}

/** Reads `output_token_logprobs`, which has `[log-probability, id, text]` for each token. */
export function readTuples(tuples: readonly unknown[]): LogprobColumns {
  const ids: number[] = [];
  const values: unknown[] = [];
  for (let i = 0; i < tuples.length; i++) {
    const tuple = tuples[i];
    const [value, id]: unknown[] = Array.isArray(tuple) ? tuple : [];
    if (typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id > MAX_TOKEN_ID) {
      throw invalidReply(`${TUPLES_FIELD}.${i} has no token id`);
    }
    ids.push(id);
    values.push(value);
  }
  return { ids, values };
}

type ForeignUsage = z.output<typeof usageSchema>;

/** Makes the usage of a reply. `cached` is the number of cached tokens; it is absent when the server does not report it. */
export function usageOf(prompt: number, completion: number, cached: number | null | undefined): ForeignUsage {
  const details = { cached_tokens: cached ?? null };
  return { prompt_tokens: prompt, completion_tokens: completion, prompt_tokens_details: details };
}

/** Returns the policy version that the server reported; `null` when its weights were not given a version. */
export function versionOf(reported: string | number | null | undefined): string | null {
  return reported === null || reported === undefined || reported === UNNAMED_VERSION ? null : String(reported);
}

/** Throws `engine_error` when the reply's prompt differs from the sent prompt. */
export function assertSentPrompt(sent: Int32Array, used: Int32Array): void {
  if (sent.length !== used.length) {
    throw invalidReply(`it was prompted with ${used.length} ids, not the ${sent.length} sent`);
  }
  const at = sent.findIndex((id, index) => used[index] !== id);
  if (at < 0) return;
  throw invalidReply(`it was prompted with other ids than those sent: ${used[at]} for ${sent[at]} at ${at}`);
}

const NO_MESSAGE: AssistantMessage = { role: 'assistant', content: '' };

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
  const logprobs = readTuples(meta.output_token_logprobs ?? noTuples(reply.output_ids));
  const echoed = reply.prompt_token_ids;
  const checked = checkedReply({
    // Releases without return_prompt_token_ids report only the number of ids, which is compared with the number of sent ids.
    promptIds: echoed === null || echoed === undefined ? call.sent : idsFrom(echoed, scanned, 'prompt_token_ids'),
    responseIds: Int32Array.from(reply.output_ids ?? logprobs.ids),
    logprobs,
    logprobsField: TUPLES_FIELD,
    versions: meta.weight_versions,
    message: NO_MESSAGE,
    finishReason: finishReasonFrom(finish.type),
    reported: finish.matched,
    ends,
    usage: usageOf(prompt_tokens, completion_tokens, meta.cached_tokens),
  });
  const own = { endVersion: versionOf(meta.weight_version), experts: meta.routed_experts ?? null };
  return { ...ownReply(checked, own), text: reply.text };
}

/**
 * Returns an empty list of log-probabilities for a reply without token ids. A reply that was aborted before its first token may lack the
 * list. Throws `engine_error` for any other reply.
 */
function noTuples(ids: readonly number[] | null | undefined): readonly unknown[] {
  if (ids?.length === 0) return [];
  throw invalidReply('meta_info.output_token_logprobs is missing');
}
