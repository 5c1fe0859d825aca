import { type RandomSource, seededRandom } from '@floe-rl/core';

/** One sample of a group: how long its session takes in ms, and whether it solves its task. */
export type Sample = { readonly ms: number; readonly isSolved: boolean };

/** Distributions of the tasks of a workload. Solve rates have a Beta distribution, durations a log-normal distribution. */
export type Workload = {
  readonly name: string;
  readonly alpha: number;
  readonly beta: number;
  readonly meanMs: number;
  /** Standard deviation of the logarithm of a duration, between tasks and between the samples of a task. */
  readonly taskSigma: number;
  readonly sampleSigma: number;
};

/**
 * Tasks like SWE-Gym with a 4B model: 47 % of the groups of 8 samples are informative, and sessions take 432 s on average. A published model
 * of the same workload takes 165 minutes per batch with 64 workers and 135 with 512. The deviations are chosen so that sampling batch by batch
 * takes as long here.
 */
export const SWE_LIKE: Workload = {
  name: 'SWE-like',
  alpha: 0.3,
  beta: 1.2,
  meanMs: 432_000,
  taskSigma: 0.7,
  sampleSigma: 0.5,
};

/** Returns the samples of the group of row `index`. The same arguments give the same samples. */
export function samplesOf(workload: Workload, seed: number, index: number, count: number): Sample[] {
  const random = seededRandom(seed * 1_000_003 + index);
  const { alpha, beta, meanMs, taskSigma, sampleSigma } = workload;
  const a = gamma(alpha, random);
  const solveRate = a / (a + gamma(beta, random));
  const taskLog = taskSigma * normal(random);
  const shift = (taskSigma ** 2 + sampleSigma ** 2) / 2;
  return Array.from({ length: count }, () => ({
    ms: meanMs * Math.exp(taskLog + sampleSigma * normal(random) - shift),
    isSolved: random() < solveRate,
  }));
}

export function isInformative(samples: readonly Sample[]): boolean {
  const solved = samples.filter(({ isSolved }) => isSolved).length;
  return solved > 0 && solved < samples.length;
}

/** A standard normal number (Box and Muller). */
function normal(random: RandomSource): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

/** A gamma distributed number with scale 1 (Marsaglia and Tsang 2000; for shapes below 1 with their boost). */
function gamma(shape: number, random: RandomSource): number {
  if (shape < 1) return gamma(shape + 1, random) * (1 - random()) ** (1 / shape);
  const d = shape - 1 / 3;
  const c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = normal(random);
    const v = (1 + c * x) ** 3;
    if (v > 0 && Math.log(1 - random()) < 0.5 * x * x + d - d * v + d * Math.log(v)) return d * v;
  }
}
