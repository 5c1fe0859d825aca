import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, FinishReason, StopCause, VersionSpan } from '@floe-rl/core/schema';
import type { z } from 'zod';
import type { GenerateReply } from '../engine.ts';
import type { stopReasonSchema } from './reply-fields.ts';
import {
  abortedBeforeFirstToken,
  assertIdCount,
  invalidReply,
  isLogprob,
  logprobFrom,
  usageFrom,
  type usageSchema,
  versionSpansFrom,
  type versionsSchema,
} from './reply-tokens.ts';

/** Prefix of a token id in the log-probability field `token`, where OpenAI's API has the token's text. vLLM writes it on request. */
const TOKEN_ID_PREFIX = 'token_id:';

/** Name of the field with log-probabilities in chat completions. */
const LOGPROBS_FIELD = 'logprobs.content';

/** Log-probabilities as one array of token ids and one array of values. The types of the values have not been checked yet. */
export type LogprobColumns = { readonly ids: readonly number[]; readonly values: readonly unknown[] };

/** The stop strings of the request, and the token ids that are known to close a turn. Each of them may end a reply. */
export type ReplyEnds = { readonly stop: readonly string[]; readonly closeIds: readonly number[] };

/** The fields of a reply with text alone, before they are checked. */
type TextFields = {
  readonly message: AssistantMessage;
  readonly finishReason: FinishReason;
  /** The stop token or stop string that the server reports. */
  readonly reported: z.output<typeof stopReasonSchema>;
  readonly usage: z.output<typeof usageSchema> | null | undefined;
};

/** The fields of a reply with token ids, before they are checked. Streamed and whole replies of all engines are converted to this form. */
export type ReplyFields = TextFields & {
  readonly promptIds: Int32Array;
  readonly responseIds: Int32Array;
  /** The entries of `logprobs.content`, or their columns; there must be one for each response id. */
  readonly logprobs: readonly unknown[] | LogprobColumns | null | undefined;
  /** Name of the reply's field with the log-probabilities, for errors. */
  readonly logprobsField?: string;
  readonly versions: z.output<typeof versionsSchema>;
  /**
   * Used when the server does not report which stop ended a reply. `null` for a server that reports every stop string: without a report, the
   * last id is then a stop token.
   */
  readonly ends: ReplyEnds | null;
};

/** A reply whose fields have been checked. `versionSpans` is `null` when the server does not report them. */
export type CheckedReply = Omit<GenerateReply, 'versionSpans' | 'logprobsMode' | 'routedExperts'> & {
  readonly versionSpans: readonly VersionSpan[] | null;
};

/**
 * Checks the fields of a reply. Throws `engine_error`, which states what is wrong, for a reply that must not be trained on. Throws
 * `engine_unavailable` for a reply that was aborted before its first token, because the request can be retried without losing a token.
 */
export function checkedReply(fields: ReplyFields): CheckedReply {
  const { promptIds, responseIds, message } = fields;
  const { finishReason, usage } = endOf(fields);
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
    responseLogprobs: logprobsOf(fields),
    versionSpans: versionSpansFrom(fields.versions, responseIds.length),
    message,
    finishReason,
    stop: stopOf(fields),
    usage,
  };
}

/**
 * Checks the fields of a streamed reply as {@link checkedReply} does. When ids or log-probabilities are missing, the error has
 * `details.lost_ids`. The parsers of some servers drop ids together with the text that they remove, and later streams would lose ids as well.
 */
export function checkedStream(fields: ReplyFields): CheckedReply {
  try {
    return checkedReply(fields);
  } catch (error) {
    throw FloeError.is(error) && hasLostIds(fields) ? lostIdsError(error) : error;
  }
}

function hasLostIds({ promptIds, responseIds, logprobs, usage }: ReplyFields): boolean {
  const entries = logprobs && 'ids' in logprobs ? logprobs.values : logprobs;
  return (
    responseIds.length !== usage?.completion_tokens ||
    promptIds.length !== usage.prompt_tokens ||
    (entries?.length ?? 0) !== responseIds.length
  );
}

/** Adds to the error that the stream has lost token ids, so that the engine's later replies are not streamed. */
export function lostIdsError(error: FloeError): FloeError {
  return new FloeError(error.code, error.message, { ...error.details, lost_ids: true }, error.cause);
}

/** Makes a reply without token ids. Throws `engine_error` when its usage is missing. */
export function textReply(fields: TextFields): CheckedReply {
  const { message, reported } = fields;
  return {
    promptIds: new Int32Array(0),
    responseIds: new Int32Array(0),
    responseLogprobs: new Float32Array(0),
    versionSpans: [],
    message,
    stop: typeof reported === 'string' ? { kind: 'string', text: reported } : null,
    ...endOf(fields),
  };
}

function endOf({ message, finishReason, usage }: TextFields): Pick<GenerateReply, 'finishReason' | 'usage'> {
  if (!usage) throw invalidReply('usage is missing, and it is never estimated');
  // Some servers report `stop` for replies with tool calls too. A harness would not execute the tool calls then, so the reason is corrected.
  const hasCalls = message.tool_calls !== undefined && finishReason === 'stop';
  return { finishReason: hasCalls ? 'tool_calls' : finishReason, usage: usageFrom(usage) };
}

/**
 * Reads the log-probabilities of the sampled ids. They are checked without a schema, because one schema object per token costs more than
 * everything else in a reply.
 */
function logprobsOf({
  logprobs: content,
  responseIds: ids,
  logprobsField = 'logprobs.content',
}: ReplyFields): Float32Array {
  if (content === null || content === undefined) throw invalidReply(`${logprobsField} is missing`);
  const columns = 'ids' in content ? content : null;
  const entries = 'ids' in content ? content.values : content;
  const count = ids.length;
  if (entries.length !== count) {
    throw invalidReply(`${logprobsField} has ${entries.length} entries for ${count} token_ids`);
  }
  const logprobs = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    logprobs[i] =
      columns === null
        ? entryLogprob(entries[i], i, ids[i], logprobsField)
        : columnLogprob(columns, i, ids[i], logprobsField);
  }
  return logprobs;
}

function columnLogprob({ ids, values }: LogprobColumns, i: number, id: number | undefined, field: string): number {
  if (ids[i] !== id) throw otherId(field, i, ids[i], id);
  const value = values[i];
  // The name of the field is made only for an error, because a reply has hundreds of values.
  return isLogprob(value) ? value : logprobFrom(value, `${field}.${i}${field === LOGPROBS_FIELD ? '.logprob' : ''}`);
}

function entryLogprob(entry: unknown, i: number, id: number | undefined, field: string): number {
  const fields = entry as { logprob?: unknown; token?: unknown; token_id?: unknown } | null;
  const value = typeof fields === 'object' && fields !== null ? fields.logprob : undefined;
  const logprob = isLogprob(value) ? value : logprobFrom(value, `${field}.${i}.logprob`);
  const token = fields?.token;
  // Servers that do not honour return_tokens_as_token_ids send the token's text in this field, which cannot be compared with the id.
  if (typeof token === 'string' && token.startsWith(TOKEN_ID_PREFIX) && token !== `${TOKEN_ID_PREFIX}${id}`) {
    throw otherId(field, i, token.slice(TOKEN_ID_PREFIX.length), id);
  }
  const tokenId = fields?.token_id;
  if (typeof tokenId === 'number' && tokenId !== id) throw otherId(field, i, tokenId, id);
  return logprob;
}

function otherId(field: string, i: number, reported: unknown, id: number | undefined): FloeError {
  return invalidReply(`${field}.${i} is of ${TOKEN_ID_PREFIX}${String(reported)}, but token_ids.${i} is ${id}`);
}

/**
 * Determines which stop token or stop string ended a reply. Servers keep the stop token in the ids. When a server reports no cause, the
 * last id is taken as the stop token, unless it may be the end of a requested stop string.
 */
function stopOf({ reported, finishReason, responseIds, ends }: ReplyFields): StopCause | null {
  if (finishReason !== 'stop' && finishReason !== 'tool_calls') return null;
  if (typeof reported === 'string') return { kind: 'string', text: reported };
  if (typeof reported === 'number') return { kind: 'token', id: reported };
  const last = responseIds.at(-1);
  const isUnknown = ends !== null && ends.stop.length > 0 && !ends.closeIds.includes(last ?? -1);
  return last === undefined || isUnknown ? null : { kind: 'token', id: last };
}
