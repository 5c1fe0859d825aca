import type { TrainingGroup } from './training-row.ts';

/**
 * How the advantage of a sample is computed from the rewards of its group.
 *
 * - `none`: no advantages; the trainer computes them.
 * - `grpo`: the reward minus the group's mean, divided by the group's standard deviation (GRPO, arXiv 2402.03300).
 * - `centered`: the reward minus the group's mean (Dr. GRPO, arXiv 2503.20783).
 * - `leave_one_out`: the reward minus the mean of the other samples (RLOO, arXiv 2402.14740).
 */
export const ADVANTAGE_METHODS = ['none', 'grpo', 'centered', 'leave_one_out'] as const;
export type AdvantageMethod = (typeof ADVANTAGE_METHODS)[number];

export type AdvantageOptions = {
  readonly method: AdvantageMethod;
  /**
   * Whether the advantage of a sample is divided by its number of rows. Then a sample that became many traces has the same total weight as
   * one that became a single trace.
   */
  readonly perSession: boolean;
};

/** Added to the standard deviation, so that a group with equal rewards has advantages of 0. */
const EPSILON = 1e-6;

/**
 * Returns the advantage of each sample of a group, which applies to all its rows; `null` for the method `none`. A sample without a reward
 * has the advantage 0 and does not count in the baseline, nor does a sample whose policy excludes it from the baseline. A group with fewer
 * than two rewards in its baseline has advantages of 0, because nothing can be compared.
 *
 * The standard deviation is that of a sample (divided by n - 1), as in TRL, verl and slime.
 */
export function sampleAdvantages(group: TrainingGroup, { method, perSession }: AdvantageOptions): number[] | null {
  if (method === 'none') return null;
  const { baseline, samples } = group;
  return samples.map((sample) => {
    const { reward, inBaseline } = sample;
    if (reward === null || baseline.length < 2) return 0;
    const advantage = advantageOf(reward, baseline, inBaseline, method);
    return perSession ? advantage / Math.max(1, sample.rows.length) : advantage;
  });
}

function advantageOf(
  reward: number,
  baseline: readonly number[],
  isMember: boolean,
  method: Exclude<AdvantageMethod, 'none'>,
): number {
  const sum = baseline.reduce((total, value) => total + value, 0);
  const mean = sum / baseline.length;
  if (method === 'leave_one_out') return isMember ? reward - (sum - reward) / (baseline.length - 1) : reward - mean;
  if (method === 'centered') return reward - mean;
  const squares = baseline.reduce((total, value) => total + (value - mean) ** 2, 0);
  return (reward - mean) / (Math.sqrt(squares / (baseline.length - 1)) + EPSILON);
}
