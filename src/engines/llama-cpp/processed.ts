import type { Sampling } from '../../schema/index.ts';

type Candidate = { readonly id: number; readonly logprob: number };

/** Whether sampling leaves the model's own distribution as it is, so that raw and processed log-probabilities are the same. */
export function isPlain(sampling: Sampling, constrained: boolean): boolean {
  const { temperature, top_p, top_k, min_p, repetition_penalty } = sampling;
  return !constrained && temperature === 1 && top_p === 1 && top_k === 0 && min_p === 0 && repetition_penalty === 1;
}

/**
 * The log-probability of `id` in the distribution that was sampled from. `raw` is the model's own over the whole vocabulary, most
 * likely first. Null for a token that is cut off. Knows no penalties: they depend on what came before.
 */
export function processedLogprob(raw: readonly Candidate[], id: number, sampling: Sampling): number | null {
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
    const enough = top_p * sum;
    let reached = 0;
    for (let i = 0; i < count; i++) {
      reached += weights[i] as number;
      if (reached >= enough) count = i + 1;
    }
    sum = reached;
  }
  const at = raw.findIndex((candidate) => candidate.id === id);
  return at < 0 || at >= count ? null : Math.log((weights[at] as number) / sum);
}
