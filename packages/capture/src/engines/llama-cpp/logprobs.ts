import type { LogprobsMode, Sampling } from '@floe-rl/core/schema';
import { concatIds, invalidReply } from '../chat/reply-tokens.ts';
import type { TokenLogprob } from './reply.ts';

/**
 * Number of most likely tokens that are requested first to find a missing log-probability. The sampled token is usually among them, while a
 * distribution over the whole vocabulary takes megabytes.
 */
const FIRST_COUNT = 64;

/** Function that requests the most likely tokens after `prefix`, at most `count`, sorted from the most likely. */
export type Distribution = (prefix: Int32Array, count: number) => Promise<readonly TokenLogprob[]>;

type MissingLogprobs = {
  readonly promptIds: Int32Array;
  readonly ids: Int32Array;
  /** The log-probabilities that the server reported, NaN at positions for which it reported none. */
  readonly known: Float32Array;
  readonly mode: LogprobsMode;
  /**
   * Whether the sampling parameters or a response format change the model's distribution, so that `processed` and `raw` log-probabilities
   * differ.
   */
  readonly isTransformed: boolean;
  readonly sampling: Sampling;
  /** Size of the vocabulary in tokens; `null` when unknown. */
  readonly vocabulary: number | null;
};

/**
 * Returns the log-probabilities of all sampled ids. Log-probabilities that the reply lacks are determined by separate requests to the same
 * model with the same preceding ids. Throws `engine_error` when one cannot be determined.
 */
export async function completeLogprobs(missing: MissingLogprobs, distribution: Distribution): Promise<Float32Array> {
  const { promptIds, ids, known } = missing;
  const logprobs = known.slice();
  for (const [index, id] of ids.entries()) {
    if (!Number.isNaN(known[index])) continue;
    const prefix = concatIds(promptIds, ids.subarray(0, index));
    logprobs[index] = await logprobOf(missing, id, (count) => distribution(prefix, count));
  }
  return logprobs;
}

async function logprobOf(
  { mode, isTransformed, sampling, vocabulary }: MissingLogprobs,
  id: number,
  likeliest: (count: number) => ReturnType<Distribution>,
): Promise<number> {
  const all = vocabulary ?? 2 ** 31 - 1;
  if (mode === 'processed' && isTransformed) {
    const logprob = processedLogprob(await likeliest(all), id, sampling);
    if (logprob === null) throw invalidReply(`the requested sampling cannot have sampled the id ${id}`);
    return logprob;
  }
  for (const count of [FIRST_COUNT, all]) {
    const candidate = (await likeliest(count)).find((token) => token.id === id);
    if (candidate !== undefined) return candidate.logprob;
  }
  throw invalidReply(`the server does not report the log-probability of the id ${id}`);
}

/** Whether sampling uses the model's distribution unchanged, so that raw and processed log-probabilities are equal. */
export function isUntransformed(sampling: Sampling, isConstrained: boolean): boolean {
  const { temperature, top_p, top_k, min_p, repetition_penalty } = sampling;
  return !isConstrained && temperature === 1 && top_p === 1 && top_k === 0 && min_p === 0 && repetition_penalty === 1;
}

/**
 * Computes the log-probability of `id` in the distribution that was sampled from; `null` for a token that the sampling parameters
 * exclude. `raw` is the model's own distribution over the whole vocabulary, sorted from the most likely token. Penalties are not
 * supported, because they depend on the preceding ids.
 */
export function processedLogprob(raw: readonly TokenLogprob[], id: number, sampling: Sampling): number | null {
  const { temperature, min_p, top_k, top_p } = sampling;
  if (temperature === 0) return raw[0]?.id === id ? 0 : null;
  const top = (raw[0]?.logprob ?? 0) / temperature;
  const weights = raw.map(({ logprob }) => Math.exp(logprob / temperature - top));
  let count = weights.findIndex((weight) => weight < min_p);
  if (count < 0) count = weights.length;
  if (top_k > 0) count = Math.min(count, top_k);
  let sum = 0;
  for (let i = 0; i < count; i++) sum += weights[i] as number;
  if (top_p < 1) {
    const limit = top_p * sum;
    let reached = 0;
    for (let i = 0; i < count; i++) {
      reached += weights[i] as number;
      if (reached >= limit) count = i + 1;
    }
    sum = reached;
  }
  const at = raw.findIndex((candidate) => candidate.id === id);
  return at < 0 || at >= count ? null : Math.log((weights[at] as number) / sum);
}
