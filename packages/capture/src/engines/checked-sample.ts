import { invalidReply, logprobFrom } from './chat/reply-tokens.ts';

/** The result of a sampling request as the server reports it, before it is checked. `logprobs` belong to `ids`. */
export type ReportedSample = {
  readonly ids: Int32Array;
  /** `null` when the server reports none. */
  readonly logprobs: Float32Array | null;
  readonly stopReason: 'stop' | 'length';
  /** Number of tokens of the prompt that came from the prefix cache; `null` when the server does not report it. */
  readonly cachedTokens: number | null;
};

/** A result that may be recorded. `endId` is its last id when an end token stopped it; `null` when no end token did. */
export type Sample = {
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
  readonly endId: number | null;
  /** Whether the server reports that the reply was stopped by an end token or a stop string, and not by its token limit. */
  readonly isStopped: boolean;
  readonly cachedTokens: number | null;
};

/** Values of the request that a result must match. */
type ExpectedSample = {
  readonly maxTokens: number;
  readonly endIds: readonly number[];
  /** Number of tokens of the prompt. */
  readonly contextTokens: number;
};

/** Checks a result. Throws `engine_error`, which states what is wrong, for a result that must not be trained on. */
export function checkedSample(
  { ids, logprobs, stopReason, cachedTokens }: ReportedSample,
  { maxTokens, endIds, contextTokens }: ExpectedSample,
): Sample {
  if (ids.length === 0) throw invalidReply('tokens is empty: no token was sampled');
  if (ids.length > maxTokens) throw invalidReply(`tokens has ${ids.length} ids, more than the bound of ${maxTokens}`);
  if (logprobs === null) throw invalidReply('logprobs is missing');
  if (logprobs.length !== ids.length) {
    throw invalidReply(`logprobs has ${logprobs.length} entries for ${ids.length} tokens`);
  }
  for (const [index, value] of logprobs.entries()) logprobFrom(value, `logprobs.${index}`);
  const end = ids.findIndex((id) => endIds.includes(id));
  if (end >= 0 && end < ids.length - 1) {
    throw invalidReply(`tokens continues after the end token ${ids[end]} at position ${end}`);
  }
  return {
    ids,
    logprobs,
    endId: end < 0 ? null : (ids[end] as number),
    isStopped: stopReason === 'stop',
    cachedTokens: cachedTokens !== null && cachedTokens <= contextTokens ? cachedTokens : null,
  };
}
