import type { NextToken } from './policy.ts';

/** Sampling parameters in effect for one reply. Zero (or 1 for `topP` and the penalty) switches a part off. */
export type SamplerParams = {
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
};

/** Below this an engine samples greedily (vLLM's bound). */
const GREEDY_TEMPERATURE = 1e-5;

/** Ids seen, for the penalties: in the prompt or the reply, and how often in the reply. */
export type SeenTokens = { readonly prompt: ReadonlySet<number>; readonly counts: ReadonlyMap<number, number> };

export function isGreedy(params: SamplerParams): boolean {
  return params.temperature < GREEDY_TEMPERATURE;
}

export function hasPenalties(params: SamplerParams): boolean {
  return params.repetitionPenalty !== 1 || params.presencePenalty !== 0 || params.frequencyPenalty !== 0;
}

/**
 * The distribution that a token is really drawn from: mask, penalties, temperature, min_p, top_k, top_p, in vLLM's order,
 * with the policy's log-probabilities as logits. Returns log-probabilities; -Infinity where a candidate is cut off.
 * Greedy sampling reports the distribution after penalties, with nothing cut off, as vLLM does.
 */
export function processed(next: NextToken, params: SamplerParams, seen: SeenTokens): readonly number[] {
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

/** Index of the candidate drawn by the uniform number `u`; the most likely one when greedy. */
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
  // Rounding may leave a remainder of about 1e-16.
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

/** Keeps the most likely candidates until their sum reaches `topP`; always at least one. */
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
