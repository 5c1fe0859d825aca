import { type Reply, repliesOf, trajectoryOf } from './replies.ts';
import type { RowAdvantage } from './sequence.ts';
import type { TrainingGroup, TrainingRow, TrainingSample } from './training-row.ts';

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
   * Whether the advantage of a sample is divided by its number of rows. Then every sample has the same total weight, however many traces it
   * has.
   */
  readonly perSession: boolean;
  /** Whether each reply has an advantage of its own, from its reward and the rewards of the replies after it. */
  readonly perTurn: boolean;
};

/** Returns the advantages of the rows of each sample of a group; `null` for the method `none`. */
export function rowAdvantages(group: TrainingGroup, options: AdvantageOptions): RowAdvantage[][] | null {
  if (options.method === 'none') return null;
  if (options.perTurn) return turnAdvantages(group, { ...options, method: options.method });
  const advantages = sampleAdvantages(group, options);
  return group.samples.map(({ rows }, at) => rows.map(() => advantages?.[at] ?? 0));
}

/** Added to the standard deviation, so that a group with equal rewards has advantages of 0. */
const EPSILON = 1e-6;

/**
 * Returns the advantage of each sample of a group, which applies to all its rows; `null` for the method `none`. A sample without a reward has
 * the advantage 0 and does not count in the baseline, nor does a sample whose policy excludes it from the baseline. A group with fewer than
 * two rewards in its baseline has advantages of 0, because nothing can be compared.
 *
 * The standard deviation is the sample standard deviation (divided by n - 1), as in TRL, verl and slime.
 */
function sampleAdvantages(
  group: TrainingGroup,
  { method, perSession }: Omit<AdvantageOptions, 'perTurn'>,
): number[] | null {
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

/**
 * Returns the advantages of the rows of each sample, with one for each reply. The advantage of a reply is the sum of its normalised reward and
 * the normalised rewards of the replies after it in its trajectory.
 *
 * A reward is normalised over all replies of the group's samples that count in the baseline (GRPO with process supervision, arXiv 2402.03300,
 * section 4.1.3). `leave_one_out` compares it with the replies of the other samples. Advantages are 0 for samples without a reward, and for a
 * group with fewer than two samples in the baseline.
 */
function turnAdvantages(
  { samples }: TrainingGroup,
  { method, perSession }: AdvantageOptions & { readonly method: Exclude<AdvantageMethod, 'none'> },
): Float32Array[][] {
  const replies = samples.map(({ rows }) => rows.map(repliesOf));
  const rewards = replies.map((rows) => rows.flatMap((row) => row.map(({ reward }) => reward)));
  const counts = samples.map(({ inBaseline, reward }) => inBaseline && reward !== null);
  const hasBaseline = counts.filter((isMember) => isMember).length > 1;
  return samples.map((sample, at) => {
    const others = rewards.filter((_, other) => counts[other] && !(method === 'leave_one_out' && other === at)).flat();
    const scale = sample.reward === null || !hasBaseline ? 0 : 1 / (perSession ? Math.max(1, sample.rows.length) : 1);
    // For `leave_one_out`, the other replies do not include the replies of this sample, so only their mean is subtracted.
    const normalised = (reward: number) => (scale === 0 ? 0 : scale * advantageOf(reward, others, false, method));
    return futureSums(sample, replies[at] ?? [], normalised);
  });
}

/**
 * For each reply of each row of a sample, sums the values of the reply and of later replies in its trajectory. Returns these sums at the
 * tokens of the replies.
 */
function futureSums(
  { rows }: TrainingSample,
  replies: readonly (readonly Reply[])[],
  value: (reward: number) => number,
): Float32Array[] {
  const sums = new Map<string, number>();
  const advantages: Float32Array[] = rows.map((row) => new Float32Array(row.responseIds.length));
  // Iterates from the end, because a sum contains the values that follow. The turns of a trajectory are adjacent and in order.
  for (let at = rows.length - 1; at >= 0; at--) {
    const row = rows[at] as TrainingRow;
    const trajectory = trajectoryOf(row);
    const own = replies[at] ?? [];
    for (let turn = own.length - 1; turn >= 0; turn--) {
      const { end, reward } = own[turn] as Reply;
      const sum = (sums.get(trajectory) ?? 0) + value(reward);
      sums.set(trajectory, sum);
      const start = own[turn - 1]?.end ?? 0;
      for (let i = start; i < end; i++) if (row.lossMask[i] === 1) (advantages[at] as Float32Array)[i] = sum;
    }
  }
  return advantages;
}
