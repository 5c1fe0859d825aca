import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import type { RoutedExperts } from '../core/reply.ts';
import type { AssistantMessage, FinishReason, StopCause, Usage, VersionSpan } from '../schema/index.ts';
import type { GenerateReply } from './engine.ts';
import type { ScannedIds } from './id-scan.ts';
import type { ScannedLogprobs } from './logprob-scan.ts';

/** Log-probabilities are float32 sums; a certain token can come out this far above 0. */
const LOGPROB_ROUNDING = 1e-3;

/** How vLLM writes an id where OpenAI's API has the token's text. */
const TOKEN_ID = 'token_id:';

/** Stands in for an id array that was read from the bytes; a number is no valid value of that field. */
const SCANNED_MARK = -1;

/** Likewise for a list of log-probabilities. */
const SCANNED_LOGPROBS_MARK = -2;

export const idsSchema = z
  .union([
    z.array(
      z
        .int()
        .min(0)
        .max(2 ** 31 - 1),
    ),
    z.literal(SCANNED_MARK),
  ])
  .nullish();

export const logprobsSchema = z.looseObject({ content: z.array(z.unknown()).nullish() }).nullish();

/** Where {@link parseReplyJson} is given a list that was scanned. */
export const scannedLogprobsSchema = z
  .looseObject({ content: z.union([z.array(z.unknown()), z.literal(SCANNED_LOGPROBS_MARK)]).nullish() })
  .nullish();

export const stopReasonSchema = z.union([z.int(), z.string()]).nullish();

export const versionsSchema = z
  .array(z.looseObject({ version: z.union([z.string(), z.int()]).nullable(), start: z.int(), end: z.int() }))
  .nullish();

export const foreignUsageSchema = z.looseObject({
  prompt_tokens: z.int().min(0),
  completion_tokens: z.int().min(0),
  prompt_tokens_details: z.looseObject({ cached_tokens: z.int().nullish() }).nullish(),
});

/** What vLLM says of a reply, whether it came whole or in pieces. */
export type ReplyFields = {
  readonly promptIds: Int32Array;
  readonly responseIds: Int32Array;
  /** The entries of `logprobs.content`, one for each response id. */
  readonly logprobs: readonly unknown[] | ScannedLogprobs | null | undefined;
  readonly versions: z.output<typeof versionsSchema>;
  readonly message: AssistantMessage;
  readonly finishReason: string;
  readonly stopReason: z.output<typeof stopReasonSchema>;
  readonly usage: z.output<typeof foreignUsageSchema>;
  readonly routedExperts?: RoutedExperts | null;
};

/** vLLM's reply without what only the adapter knows: the version that it was sampled with, unless the spans tell. */
export type ParsedReply = Omit<GenerateReply, 'versionSpans' | 'logprobsMode'> & {
  readonly versionSpans: readonly VersionSpan[] | null;
};

/**
 * Throws `engine_error`, naming what is wrong, for everything that cannot be trained on; `engine_unavailable` for a reply that
 * was broken off before its first token, since another one may be sampled instead.
 */
export function recordable(fields: ReplyFields): ParsedReply {
  const { promptIds, responseIds } = fields;
  const finishReason = finishOf(fields.finishReason);
  const usage = usageOf(fields.usage);
  refuseCount('prompt_token_ids', promptIds.length, 'usage.prompt_tokens', usage.prompt_tokens);
  refuseCount('token_ids', responseIds.length, 'usage.completion_tokens', usage.completion_tokens);
  if (responseIds.length === 0) {
    throw finishReason === 'abort' ? brokenOffEarly() : refusal('token_ids is empty: nothing was sampled');
  }
  return {
    promptIds,
    responseIds,
    responseLogprobs: logprobsOf(fields.logprobs, responseIds),
    versionSpans: spansOf(fields.versions, responseIds.length),
    routedExperts: fields.routedExperts ?? null,
    message: fields.message,
    finishReason,
    stop: stopOf(fields.stopReason, finishReason, responseIds),
    usage,
  };
}

/** Nothing was sampled, so that nothing is lost by sampling elsewhere. */
export function brokenOffEarly(): FloeError {
  return new FloeError('engine_unavailable', 'the engine broke the reply off before its first token');
}

/** What was counted. A number of cached tokens that cannot be is null: nothing is trained on it, but clients would count with it. */
export function usageOf(told: z.output<typeof foreignUsageSchema>): Usage {
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = told;
  const cached = prompt_tokens_details?.cached_tokens ?? null;
  const possible = cached !== null && cached >= 0 && cached <= prompt_tokens;
  return { prompt_tokens, completion_tokens, cached_tokens: possible ? cached : null };
}

export function refusal(what: string, cause?: unknown, details: object = {}): FloeError {
  return new FloeError('engine_error', `the engine's reply cannot be recorded: ${what}`, { ...details }, cause);
}

/**
 * Parses a reply's JSON, but for what was read from its bytes already: an id array, a list of log-probabilities. Throws
 * `engine_error` for what is no JSON or reports an error.
 */
export function parseReplyJson(
  body: Buffer,
  scanned: ScannedIds | null,
  logprobs: ScannedLogprobs | null = null,
): unknown {
  const cuts: Cut[] = [];
  if (scanned !== null) cuts.push({ start: scanned.start, end: scanned.end, mark: SCANNED_MARK });
  if (logprobs !== null) cuts.push({ start: logprobs.start, end: logprobs.end, mark: SCANNED_LOGPROBS_MARK });
  const text = textWithout(body, cuts);
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw refusal('it is not JSON', cause);
  }
  if (isErrorBody(json)) {
    throw refusal(`status 200 with an error inside: ${errorMessage(json) ?? 'without a message'}`);
  }
  return json;
}

type Cut = { readonly start: number; readonly end: number; readonly mark: number };

function textWithout(body: Buffer, cuts: Cut[]): string {
  let text = '';
  let at = 0;
  for (const { start, end, mark } of cuts.sort((a, b) => a.start - b.start)) {
    text += body.toString('utf8', at, start) + mark;
    at = end;
  }
  return text + body.toString('utf8', at);
}

/** The value in its shape. Throws `engine_error` naming the first wrong field. */
export function shaped<T extends z.ZodType>(schema: T, json: unknown): z.output<T> {
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw refusal(issue ? `${issue.path.map(String).join('.') || 'body'}: ${issue.message}` : 'wrong shape');
}

const errorBodySchema = z.looseObject({ error: z.unknown() });

/** By hand: a schema that does not match makes an error object, which every good reply would pay for. */
export function isErrorBody(json: unknown): boolean {
  if (typeof json !== 'object' || json === null) return false;
  return 'error' in json || ('object' in json && json.object === 'error');
}

const messageBodySchema = z.looseObject({ message: z.string() });

/** The message of an error body in either of the shapes that vLLM has used. */
export function errorMessage(json: unknown): string | null {
  const nested = errorBodySchema.safeParse(json);
  const holder = messageBodySchema.safeParse(nested.success && nested.data.error ? nested.data.error : json);
  if (holder.success) return holder.data.message;
  return nested.success && typeof nested.data.error === 'string' ? nested.data.error : null;
}

/** The id echoes the request id that was sent. One that is another floe call's means that replies were mixed up. */
export function refuseForeignId(id: string | null | undefined, completionId: string): void {
  if (!id || id.endsWith(completionId)) return;
  const prefix = completionId.slice(0, completionId.indexOf('_') + 1);
  if (prefix !== '' && id.replace(/^(?:chatcmpl|generate-tokens)-/, '').startsWith(prefix)) {
    throw refusal(`it answers ${id}, not ${completionId}`);
  }
}

/** Throws `engine_error` for a reply of a model that was not there when the engine was registered. */
export function refuseForeignModel(model: string | null | undefined, models: ReadonlySet<string>): void {
  if (!model || models.has(model)) return;
  throw refusal(`model is ${JSON.stringify(model)}, at registration it was ${[...models].join(' or ')}`);
}

export function idsOf(
  value: number[] | number | null | undefined,
  scanned: ScannedIds | null,
  field: string,
): Int32Array {
  if (value === null || value === undefined) {
    throw refusal(`${field} is missing; the server does not honour return_token_ids`);
  }
  if (typeof value !== 'number') return Int32Array.from(value);
  if (scanned === null) throw refusal(`${field} is not an array of ids`);
  return scanned.ids;
}

export function refuseCount(field: string, count: number, usageField: string, usage: number): void {
  if (count !== usage) throw refusal(`${field} has ${count} ids, but ${usageField} is ${usage}`);
}

export function finishOf(reason: string): FinishReason {
  switch (reason) {
    case 'stop':
    case 'length':
    case 'tool_calls':
    case 'abort':
      return reason;
    default:
      throw refusal(`finish_reason is ${JSON.stringify(reason)}`);
  }
}

/** What {@link recordable} takes: the list as it was parsed, or as it was scanned. Throws `engine_error` for a mark of neither. */
export function logprobsIn(
  content: readonly unknown[] | number | null | undefined,
  scanned: ScannedLogprobs | null,
): ReplyFields['logprobs'] {
  if (typeof content !== 'number') return content;
  if (scanned === null) throw refusal('logprobs.content is not a list');
  return scanned;
}

/** Checked by hand: one schema object per token costs more than everything else in a reply. */
function logprobsOf(content: ReplyFields['logprobs'], ids: Int32Array): Float32Array {
  if (content === null || content === undefined) throw refusal('logprobs.content is missing');
  const columns = 'start' in content ? content : null;
  const entries = 'start' in content ? content.values : content;
  const count = ids.length;
  if (entries.length !== count) throw refusal(`logprobs.content has ${entries.length} entries for ${count} token_ids`);
  const logprobs = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    logprobs[i] = columns === null ? entryLogprob(entries[i], i, ids[i]) : columnLogprob(columns, i, ids[i]);
  }
  return logprobs;
}

function columnLogprob({ ids, values }: ScannedLogprobs, i: number, id: number | undefined): number {
  if (ids[i] !== id) throw refusal(`logprobs.content.${i} is of ${TOKEN_ID}${ids[i]}, but token_ids.${i} is ${id}`);
  const value = values[i];
  return isLogprob(value) ? value : refuseLogprob(value, `logprobs.content.${i}.logprob`);
}

function entryLogprob(entry: unknown, i: number, id: number | undefined): number {
  const told = entry as { logprob?: unknown; token?: unknown; token_id?: unknown } | null;
  const value = typeof told === 'object' && told !== null ? told.logprob : undefined;
  const logprob = isLogprob(value) ? value : refuseLogprob(value, `logprobs.content.${i}.logprob`);
  const token = told?.token;
  // Servers that do not honour return_tokens_as_token_ids send the token's text, which proves nothing.
  if (typeof token === 'string' && token.startsWith(TOKEN_ID) && token !== `${TOKEN_ID}${id}`) {
    throw refusal(`logprobs.content.${i} is of ${token}, but token_ids.${i} is ${id}`);
  }
  const tokenId = told?.token_id;
  if (typeof tokenId === 'number' && tokenId !== id) {
    throw refusal(`logprobs.content.${i} is of token_id:${tokenId}, but token_ids.${i} is ${id}`);
  }
  return logprob;
}

/** Whether it can be the log-probability of a token that was sampled. */
export function isLogprob(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value) && value <= LOGPROB_ROUNDING;
}

/** Throws `engine_error` saying what is wrong with a value that is no {@link isLogprob}. */
export function refuseLogprob(value: unknown, field: string): never {
  if (typeof value !== 'number' || !Number.isFinite(value)) throw refusal(`${field} is not a finite number`);
  throw refusal(`${field} is ${value}, above 0`);
}

export function spansOf(spans: ReplyFields['versions'], count: number): VersionSpan[] | null {
  if (spans === null || spans === undefined || spans.length === 0) return null;
  let next = 0;
  for (const [index, span] of spans.entries()) {
    if (span.start !== next || span.end < span.start)
      throw refusal(`weight_versions.${index} does not follow the span before`);
    next = span.end;
  }
  if (next !== count) throw refusal(`weight_versions cover ${next} of ${count} token_ids`);
  return spans.map(({ version, start, end }) => ({ version: version === null ? null : String(version), start, end }));
}

/** vLLM leaves `stop_reason` null when the end-of-sequence token ended the reply, and keeps that token in the ids. */
function stopOf(reason: ReplyFields['stopReason'], finish: FinishReason, ids: Int32Array): StopCause | null {
  if (typeof reason === 'string') return { kind: 'string', text: reason };
  if (typeof reason === 'number') return { kind: 'token', id: reason };
  const last = ids.at(-1);
  const ended = finish === 'stop' || finish === 'tool_calls';
  return ended && last !== undefined ? { kind: 'token', id: last } : null;
}
