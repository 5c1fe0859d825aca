// Decides whether a run learned, and whether a sabotaged run failed in the way that its sabotage predicts.
import type { Step } from '../../examples/learn-sim/learn.ts';
import type { Run } from './run.ts';

/** A run has learned when its mean reward is at most `UNTRAINED` at the start and at least `TRAINED` at the end. */
const UNTRAINED = 0.35;
const TRAINED = 0.85;
/**
 * Highest mean reward at the end of a run that failed as it should. A trainer that learns only which port to set ends at 1/3, because the
 * policy reads the log with that probability.
 */
const FAILED = 0.7;

export type Counts = {
  readonly sessions: number;
  readonly tokens: number;
  readonly choices: number;
  readonly impossible: number;
  readonly stale: number;
  readonly mismatched: number;
};

export function countsOf(steps: readonly Step[]): Counts {
  const sum = (field: keyof Counts): number => steps.reduce((total, step) => total + step[field], 0);
  return {
    sessions: sum('sessions'),
    tokens: sum('tokens'),
    choices: sum('choices'),
    impossible: sum('impossible'),
    stale: sum('stale'),
    mismatched: sum('mismatched'),
  };
}

/** Returns one sentence for each way in which a run is not as it should be. */
export function problemsOf(run: Run): string[] {
  const { sabotage, rewardStart, rewardEnd } = run;
  const counts = countsOf(run.steps);
  const problems: string[] = [];
  const must = (holds: boolean, problem: string): void => {
    if (!holds) problems.push(problem);
  };
  must(rewardStart < UNTRAINED, `the mean reward starts at ${rewardStart.toFixed(2)}, not under ${UNTRAINED}`);
  must(counts.stale > 0, 'no token was sampled by an older version than the one that was trained');
  if (sabotage === null) {
    must(rewardEnd > TRAINED, `the mean reward ends at ${rewardEnd.toFixed(2)}, not over ${TRAINED}`);
    must(counts.impossible === 0, `${counts.impossible} tokens cannot have been sampled where they are`);
    must(
      counts.mismatched === 0,
      `${counts.mismatched} tokens have a log-probability that their version does not give`,
    );
    return problems;
  }
  must(rewardEnd < FAILED, `the mean reward ends at ${rewardEnd.toFixed(2)}: the sabotage did not prevent learning`);
  must(counts.choices > 0, 'the trainer got no token at which the policy chose');
  must(hasMoved(run, /^port-/), 'the trainer did not move the logits that it could still train');
  if (sabotage.name === 'rewards permuted') {
    must(counts.impossible === 0, `${counts.impossible} tokens cannot have been sampled where they are`);
  } else {
    must(counts.impossible > 0, 'every trained token can have been sampled where it is');
    must(!hasMoved(run, /^plan$/), 'the trainer moved the logits of the first token of the first reply');
  }
  return problems;
}

/** Whether the training changed a logit of the choices whose names match. All logits are 0 at the start. */
function hasMoved({ steps }: Run, choices: RegExp): boolean {
  const table = Object.values(steps.at(-1)?.logits ?? {});
  return table.some((byChoice) =>
    Object.entries(byChoice).some(([choice, logits]) => choices.test(choice) && logits.some((logit) => logit !== 0)),
  );
}
