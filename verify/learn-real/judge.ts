// Decides whether a run learned, and whether the recorded weights sampled its tokens.
import type { Comparison } from './comparison.ts';
import type { CurvePoint } from './curve.ts';

/** The mean reward that the policy must be below before training, and must exceed after it. */
const MAX_START = 0.5;
const MIN_END = 0.85;
/** Largest difference between two log-probabilities that the order of float32 additions can explain. */
const MAX_DIFFERENCE = 1e-3;
const MAX_RATIO_ERROR = 0.01;

export type TrainerRun = Comparison & {
  readonly reward_start: number;
  readonly reward_end: number;
  readonly steps: number;
  readonly curve: readonly CurvePoint[];
};

/** Returns one sentence for each way in which a run is not as it should be. A run that is too short to learn need not raise the reward. */
export function problemsOf(run: TrainerRun, { learns }: { readonly learns: boolean }): string[] {
  const { reward_start: start, reward_end: end, max_abs_logprob_diff: largest, ratio_mean: ratio } = run;
  const checks: readonly (readonly [boolean, string])[] = [
    [!learns || (start < MAX_START && end > MIN_END), `the reward went from ${start.toFixed(2)} to ${end.toFixed(2)}`],
    [run.tokens_compared > 0, 'no token was compared'],
    [largest <= MAX_DIFFERENCE, `log-probabilities differ by up to ${largest}`],
    [Math.abs(ratio - 1) <= MAX_RATIO_ERROR, `the mean ratio is ${ratio}`],
    [run.taken_samples > 0, 'the trainer took no samples'],
    [run.unmatched_samples === 0, `${run.unmatched_samples} samples of the trainer are in no trace`],
    [run.notices_shifted_logprobs, 'shifted log-probabilities are not noticed'],
    [run.notices_shifted_ids, 'shifted ids are not noticed'],
  ];
  return checks.flatMap(([holds, problem]) => (holds ? [] : [problem]));
}
