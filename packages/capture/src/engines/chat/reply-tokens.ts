import { FloeError } from '@floe-rl/core';
import type { FinishReason, Usage, VersionSpan } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { RoutedExperts } from '../../reply.ts';
import type { SampledTokens } from '../engine.ts';
import { MAX_TOKEN_ID, type ScannedIds, type ScannedLogprobs } from './reply-scan.ts';

/**
 * Largest log-probability that is accepted. The log-probability of a certain token may lie slightly above 0, because it is a float32 sum
 * with rounding errors.
 */
const LOGPROB_ROUNDING = 1e-3;

/**
 * Placeholder for an array of token ids that was read directly from a reply's bytes. It replaces the array in the text before the text is
 * parsed as JSON. No valid reply has a number in place of the array.
 */
const SCANNED_IDS_MARK = -1;

/**
 * Placeholder for a list of log-probabilities that was read directly from a reply's bytes. It replaces the list before the text is parsed
 * as JSON.
 */
const SCANNED_LOGPROBS_MARK = -2;

export const tokenIdSchema = z.int().min(0).max(MAX_TOKEN_ID);

export const tokenIdsSchema = z.array(tokenIdSchema);

/**
 * Schema of a list of token ids in JSON that {@link parseReplyJson} has parsed: an array, or the placeholder for an array that was read
 * directly from the bytes.
 */
export const idsSchema = z.union([tokenIdsSchema, z.literal(SCANNED_IDS_MARK)]).nullish();

export const logprobsSchema = z.object({ content: z.array(z.unknown()).nullish() }).nullish();

/**
 * Schema of a list of log-probabilities in JSON that {@link parseReplyJson} has parsed: an array, or the placeholder for a list that was
 * read directly from the bytes.
 */
export const scannedLogprobsSchema = z
  .object({ content: z.union([z.array(z.unknown()), z.literal(SCANNED_LOGPROBS_MARK)]).nullish() })
  .nullish();

export const versionsSchema = z
  .array(z.object({ version: z.union([z.string(), z.int()]).nullable(), start: z.int(), end: z.int() }))
  .nullish();

export const usageSchema = z.object({
  prompt_tokens: z.int().min(0),
  completion_tokens: z.int().min(0),
  prompt_tokens_details: z.object({ cached_tokens: z.int().nullish() }).nullish(),
});

/** Makes the error for a reply that must not be recorded; `reason` describes the defect. */
export function invalidReply(reason: string, cause?: unknown, details: object = {}): FloeError {
  return new FloeError('engine_error', `the engine's reply cannot be recorded: ${reason}`, { ...details }, cause);
}

/**
 * Makes the error for a reply that the engine aborted before its first token. Its code is `engine_unavailable`, so that the reply is
 * sampled on another engine; no token is lost.
 */
export function abortedBeforeFirstToken(): FloeError {
  return new FloeError('engine_unavailable', 'the engine aborted the reply before its first token');
}

/** The offsets of a value in the bytes of a JSON text: its first byte, and the byte after its last one. */
export type JsonRange = { readonly start: number; readonly end: number };

/**
 * Parses a reply's JSON, except for the token ids and log-probabilities that were already read directly from its bytes. `scannedIds` are the
 * ids of the prompt and `sampledIds` the ids of the reply. Throws `engine_error` for text that is not JSON, and for a body that reports an
 * error.
 */
export function parseReplyJson(
  body: Buffer,
  scannedIds: JsonRange | null,
  scannedLogprobs: JsonRange | null = null,
  sampledIds: JsonRange | null = null,
): unknown {
  const cuts: Cut[] = [];
  if (scannedIds !== null) addCut(cuts, scannedIds, SCANNED_IDS_MARK);
  if (sampledIds !== null) addCut(cuts, sampledIds, SCANNED_IDS_MARK);
  if (scannedLogprobs !== null) addCut(cuts, scannedLogprobs, SCANNED_LOGPROBS_MARK);
  const text = textWithout(body, cuts);
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw invalidReply('it is not JSON', cause);
  }
  if (isErrorBody(json)) {
    throw invalidReply(`status 200 with an error inside: ${errorMessageOf(json) ?? 'without a message'}`);
  }
  return json;
}

type Cut = JsonRange & { readonly mark: number };

/** Adds a cut and keeps the list in the order of the text. */
function addCut(cuts: Cut[], { start, end }: JsonRange, mark: number): void {
  let at = cuts.length;
  while (at > 0 && (cuts[at - 1] as Cut).start > start) at--;
  cuts.splice(at, 0, { start, end, mark });
}

function textWithout(body: Buffer, cuts: readonly Cut[]): string {
  let text = '';
  let at = 0;
  for (const { start, end, mark } of cuts) {
    text += body.toString('utf8', at, start) + mark;
    at = end;
  }
  return text + body.toString('utf8', at);
}

/** Parses `json` with `schema`. Throws `engine_error` naming the first field that does not match. */
export function parseWith<T extends z.ZodType>(schema: T, json: unknown): z.output<T> {
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw invalidReply(issue ? `${issue.path.map(String).join('.') || 'body'}: ${issue.message}` : 'wrong shape');
}

const errorBodySchema = z.looseObject({ error: z.unknown() });

/**
 * Whether a reply's JSON reports an error. It is checked without a schema, because zod creates an error object for each mismatch, a cost
 * that every good reply would have.
 */
export function isErrorBody(json: unknown): boolean {
  if (typeof json !== 'object' || json === null) return false;
  return 'error' in json || ('object' in json && json.object === 'error');
}

const messageBodySchema = z.looseObject({ message: z.string() });

/** The error body of servers made with FastAPI. */
const detailBodySchema = z.looseObject({ detail: z.string() });

/**
 * Returns the message of an error body, from its field `error.message`, `message`, `error` or `detail`; `null` when it has no message.
 */
export function errorMessageOf(json: unknown): string | null {
  const nested = errorBodySchema.safeParse(json);
  const holder = messageBodySchema.safeParse(nested.success && nested.data.error ? nested.data.error : json);
  if (holder.success) return holder.data.message;
  if (nested.success && typeof nested.data.error === 'string') return nested.data.error;
  const detail = detailBodySchema.safeParse(json);
  return detail.success ? detail.data.detail : null;
}

/**
 * Throws `engine_error` when a reply carries the id of another floe call, which means that the server or a router has mixed up replies. The
 * id of a reply ends with the request id to which the server answered.
 */
export function assertReplyId(id: string | null | undefined, completionId: string): void {
  if (!id || id.endsWith(completionId)) return;
  const prefix = completionId.slice(0, completionId.indexOf('_') + 1);
  if (prefix !== '' && id.replace(/^(?:chatcmpl|generate-tokens)-/, '').startsWith(prefix)) {
    throw invalidReply(`it answers ${id}, not ${completionId}`);
  }
}

/** Throws `engine_error` when the reply names a model that the server did not serve when the engine was registered. */
export function assertReplyModel(model: string | null | undefined, models: ReadonlySet<string>): void {
  if (!model || models.has(model)) return;
  throw invalidReply(`model is ${JSON.stringify(model)}, at registration it was ${[...models].join(' or ')}`);
}

/** Throws `engine_error` when the number of token ids in `field` differs from the token count in the reply's usage. */
export function assertIdCount(field: string, count: number, usageField: string, usage: number): void {
  if (count !== usage) throw invalidReply(`${field} has ${count} ids, but ${usageField} is ${usage}`);
}

/** Returns the token ids of a field that was parsed with {@link idsSchema}. Throws `engine_error` when the field is missing. */
export function idsFrom(
  value: number[] | number | null | undefined,
  scanned: ScannedIds | null,
  field: string,
): Int32Array {
  if (value === null || value === undefined) {
    throw invalidReply(`${field} is missing; the server does not honour return_token_ids`);
  }
  if (typeof value !== 'number') return Int32Array.from(value);
  if (scanned === null) throw invalidReply(`${field} is not an array of ids`);
  return scanned.ids;
}

/**
 * Returns the list of log-probabilities in a reply's field. The field contains a number instead of a list when the list was already read
 * from the reply's bytes; `scanned` is then returned. Throws `engine_error` when the field is a number and `scanned` is `null`.
 */
export function logprobEntriesFrom(
  content: readonly unknown[] | number | null | undefined,
  scanned: ScannedLogprobs | null,
): readonly unknown[] | ScannedLogprobs | null | undefined {
  if (typeof content !== 'number') return content;
  if (scanned === null) throw invalidReply('logprobs.content is not a list');
  return scanned;
}

/** Returns `value` when it is the log-probability of a sampled token. Throws `engine_error` for any other value. */
export function logprobFrom(value: unknown, field: string): number {
  if (isLogprob(value)) return value;
  if (!Number.isFinite(value)) throw invalidReply(`${field} is not a finite number`);
  throw invalidReply(`${field} is ${value}, above 0`);
}

/** Whether `value` is the log-probability of a sampled token. */
export function isLogprob(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value) && value <= LOGPROB_ROUNDING;
}

export function finishReasonFrom(reason: string): FinishReason {
  switch (reason) {
    case 'stop':
    case 'length':
    case 'tool_calls':
    case 'abort':
      return reason;
    default:
      throw invalidReply(`finish_reason is ${JSON.stringify(reason)}`);
  }
}

/**
 * Converts the version spans that a server reports, which must cover `count` token ids without gaps; `null` when there are no spans. Throws
 * `engine_error` for gaps or overlaps.
 */
export function versionSpansFrom(spans: z.output<typeof versionsSchema>, count: number): VersionSpan[] | null {
  if (spans === null || spans === undefined || spans.length === 0) return null;
  let next = 0;
  for (const [index, span] of spans.entries()) {
    if (span.start !== next || span.end < span.start) {
      throw invalidReply(`weight_versions.${index} does not follow the span before`);
    }
    next = span.end;
  }
  if (next !== count) throw invalidReply(`weight_versions cover ${next} of ${count} token_ids`);
  return spans.map(({ version, start, end }) => ({ version: version === null ? null : String(version), start, end }));
}

/**
 * Converts the usage that a server reports. An impossible number of cached tokens becomes `null` instead of an error: training does not use
 * the number, but a wrong one could mislead clients.
 */
export function usageFrom({
  prompt_tokens,
  completion_tokens,
  prompt_tokens_details,
}: z.output<typeof usageSchema>): Usage {
  const cached = prompt_tokens_details?.cached_tokens ?? null;
  const isPossible = cached !== null && cached >= 0 && cached <= prompt_tokens;
  return { prompt_tokens, completion_tokens, cached_tokens: isPossible ? cached : null };
}

/**
 * Returns the usage of a resumed reply, which was sampled in two calls. The tokens of the first call do not count as prompt, although the
 * later call was prompted with them. `cachedTokens` is the number that the later call reported.
 */
export function resumedUsage(promptTokens: number, completionTokens: number, cachedTokens: number | null): Usage {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    cached_tokens: cachedTokens === null ? null : Math.min(cachedTokens, promptTokens),
  };
}

export function concatIds(first: Int32Array, second: Int32Array): Int32Array {
  return concat(first, second, Int32Array);
}

export function concatLogprobs(first: Float32Array, second: Float32Array): Float32Array {
  return concat(first, second, Float32Array);
}

function concat<T extends Int32Array | Float32Array>(first: T, second: T, make: new (length: number) => T): T {
  const all = new make(first.length + second.length);
  all.set(first);
  all.set(second, first.length);
  return all;
}

/**
 * Joins the version spans of a resumed reply. The spans in `first` cover the first `count` tokens. The positions in `later` are counted
 * from the first token after these. Adjacent spans of one version become one span.
 */
export function joinVersionSpans(
  first: readonly VersionSpan[],
  count: number,
  later: readonly VersionSpan[],
): VersionSpan[] {
  const moved = later.map(({ version, start, end }) => ({ version, start: start + count, end: end + count }));
  const spans: VersionSpan[] = [];
  for (const span of [...first, ...moved]) {
    const last = spans.at(-1);
    if (last !== undefined && last.version === span.version) spans[spans.length - 1] = { ...last, end: span.end };
    else if (span.end > span.start) spans.push(span);
  }
  return spans;
}

/**
 * Returns a reply shortened to its first `count` tokens. Its routed experts then have a row for each id of prompt and reply except the
 * last.
 */
export function firstTokens(
  { responseIds, responseLogprobs, versionSpans, routedExperts }: SampledTokens,
  count: number,
  promptTokens: number,
): SampledTokens {
  return {
    responseIds: responseIds.subarray(0, count),
    responseLogprobs: responseLogprobs.subarray(0, count),
    versionSpans: versionSpans
      .filter(({ start }) => start < count)
      .map((span) => ({ ...span, end: Math.min(span.end, count) })),
    routedExperts: routedExperts === null ? null : firstRows(routedExperts, promptTokens + count - 1),
  };
}

/** Returns the rows of routed experts up to the token position `end`, which is counted over prompt and response. */
function firstRows({ dtype, shape: [rows, layers, experts], start, data }: RoutedExperts, end: number): RoutedExperts {
  const kept = Math.max(0, Math.min(rows, end - start));
  return {
    dtype,
    shape: [kept, layers, experts],
    start,
    data: data.subarray(0, (data.length / Math.max(rows, 1)) * kept),
  };
}
