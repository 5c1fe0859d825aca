import type { Constraint } from './policy/constraint.ts';
import type { NextToken } from './policy/policy.ts';

/**
 * The sampling parameters that change the distribution. `temperature`, `topP` and `repetitionPenalty` have no effect at 1, the others at 0.
 * A temperature of 0 selects greedy sampling.
 */
export type SamplerParams = {
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
};

/** All sampling parameters of one reply. */
export type SamplingParams = SamplerParams & {
  /** Maximum number of tokens of the reply, already limited by the context length. */
  readonly maxTokens: number;
  readonly stop: readonly string[];
  readonly stopTokenIds: readonly number[];
  readonly ignoreEos: boolean;
  /** Whether the stop string or the text of the stop token is part of the reply. */
  readonly includeStop: boolean;
  /** Whether turn delimiters are left out of the reply's text. */
  readonly skipSpecial: boolean;
  /** Seed of the draws; `null` when the draws depend on the server's seed and a counter instead. */
  readonly seed: number | null;
  /** The format that the reply must have; `null` when any reply of the policy is allowed. */
  readonly constraint: Constraint | null;
};

/** A temperature below this value selects greedy sampling. vLLM uses the same bound. */
const GREEDY_TEMPERATURE = 1e-5;

/** The ids to which penalties apply: the prompt's ids, and the number of occurrences of each id in the reply. */
export type SeenTokens = { readonly prompt: ReadonlySet<number>; readonly counts: ReadonlyMap<number, number> };

function isGreedy(params: SamplerParams): boolean {
  return params.temperature < GREEDY_TEMPERATURE;
}

export function hasPenalties(params: SamplerParams): boolean {
  return params.repetitionPenalty !== 1 || params.presencePenalty !== 0 || params.frequencyPenalty !== 0;
}

/**
 * Returns the distribution that a token is drawn from, as log-probabilities. Penalties, the constraint's mask, temperature, min_p, top_k
 * and top_p are applied to the policy's log-probabilities in vLLM's order; a candidate that is cut off gets -Infinity. As in vLLM, greedy
 * sampling applies only the penalties and the mask.
 */
export function processLogprobs(next: NextToken, params: SamplerParams, seen: SeenTokens): readonly number[] {
  if (next.ids.length === 1) return [0];
  let logits: readonly number[] = next.logps;
  if (hasPenalties(params)) logits = penalised(next, params, seen);
  const { permitted } = next;
  if (permitted !== undefined) {
    logits = logits.map((logit, index) => (permitted[index] ? logit : Number.NEGATIVE_INFINITY));
  }
  if (isGreedy(params)) return logSoftmax(logits);
  if (params.temperature !== 1) logits = logits.map((logit) => logit / params.temperature);
  logits = logSoftmax(logits);
  if (params.minP > 0) {
    const bound = Math.max(...logits) + Math.log(params.minP);
    logits = logits.map((logit) => (logit < bound ? Number.NEGATIVE_INFINITY : logit));
  }
  if (params.topK > 0 && params.topK < logits.length) {
    const bound = [...logits].sort((a, b) => b - a)[params.topK - 1] as number;
    logits = logits.map((logit) => (logit < bound ? Number.NEGATIVE_INFINITY : logit));
  }
  if (params.topP < 1) logits = nucleus(logSoftmax(logits), params.topP);
  return logSoftmax(logits);
}

/**
 * Returns the index of the candidate that the uniform number `u` in (0, 1) selects; with greedy sampling, the index of the most likely one.
 */
export function draw(logps: readonly number[], params: SamplerParams, u: number): number {
  if (logps.length === 1) return 0;
  if (isGreedy(params)) return logps.indexOf(Math.max(...logps));
  let rest = u;
  let last = 0;
  for (const [index, logp] of logps.entries()) {
    const probability = Math.exp(logp);
    if (probability === 0) continue;
    last = index;
    rest -= probability;
    if (rest < 0) return index;
  }
  // Rounding can make the probabilities sum to slightly less than `u` (by about 1e-16); the last candidate is then selected.
  return last;
}

function penalised(next: NextToken, params: SamplerParams, seen: SeenTokens): number[] {
  return next.ids.map((id, index) => {
    let logit = next.logps[index] as number;
    const count = seen.counts.get(id) ?? 0;
    if (count > 0 || seen.prompt.has(id)) {
      logit = logit > 0 ? logit / params.repetitionPenalty : logit * params.repetitionPenalty;
    }
    return logit - params.frequencyPenalty * count - (count > 0 ? params.presencePenalty : 0);
  });
}

/** Keeps the most likely candidates until their probabilities sum to `topP`, and gives the others -Infinity. At least one is kept. */
function nucleus(logps: readonly number[], topP: number): number[] {
  const order = logps.map((_, index) => index).sort((a, b) => (logps[b] as number) - (logps[a] as number));
  const kept = logps.map(() => Number.NEGATIVE_INFINITY);
  let sum = 0;
  for (const index of order) {
    if (sum >= topP) break;
    kept[index] = logps[index] as number;
    sum += Math.exp(logps[index] as number);
  }
  return kept;
}

function logSoftmax(logits: readonly number[]): number[] {
  const max = Math.max(...logits);
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - max);
  const logSum = max + Math.log(sum);
  return logits.map((logit) => logit - logSum);
}
