import { describe, expect, it } from 'vitest';
import type { Step } from '../../../examples/learn-sim/learn.ts';
import { problemsOf } from '../../../verify/learn/judge.ts';
import type { Run } from '../../../verify/learn/run.ts';
import { SABOTAGES } from '../../../verify/learn/sabotage.ts';

const step: Step = {
  version: 'v1',
  sessions: 32,
  meanReward: 1,
  tokens: 100,
  choices: 10,
  impossible: 0,
  stale: 50,
  mismatched: 0,
  logits: { repair: { plan: [1, -1], 'port-billing': [1, -1] } },
};
const learned: Run = {
  ...{ harness: 'shell', python: null, seed: 1, sabotage: null, seconds: 1 },
  ...{ steps: [step], rewardStart: 0.2, rewardEnd: 0.95 },
};
const [shifted, , permuted] = SABOTAGES;

describe('the verdict about a run', () => {
  it('accepts an honest run that learned', () => {
    expect(problemsOf(learned)).toEqual([]);
  });

  it.each<[string, Partial<Run>, string]>([
    ['does not learn', { rewardEnd: 0.8 }, 'the mean reward ends at 0.80, not over 0.85'],
    ['has learned before', { rewardStart: 0.4 }, 'the mean reward starts at 0.40, not under 0.35'],
    ['has tokens that cannot be sampled', { steps: [{ ...step, impossible: 3 }] }, '3 tokens cannot have been sampled'],
    ['has wrong log-probabilities', { steps: [{ ...step, mismatched: 2 }] }, '2 tokens have a log-probability'],
    ['trains on no stale token', { steps: [{ ...step, stale: 0 }] }, 'no token was sampled by an older version'],
  ])('refuses an honest run that %s', (_, change, problem) => {
    expect(problemsOf({ ...learned, ...change })).toEqual([expect.stringContaining(problem)]);
  });

  it('accepts a sabotaged run that trained the rest and failed', () => {
    const logits = { repair: { plan: [0, 0], 'port-billing': [1, -1] } };
    const steps = [{ ...step, impossible: 5, logits }];
    expect(problemsOf({ ...learned, sabotage: shifted ?? null, rewardEnd: 0.4, steps })).toEqual([]);
    expect(problemsOf({ ...learned, sabotage: permuted ?? null, rewardEnd: 0.1 })).toEqual([]);
  });

  it.each<[string, Partial<Run>, string]>([
    ['learns', { rewardEnd: 0.9 }, 'the sabotage did not prevent learning'],
    ['gets no choices', { steps: [{ ...step, impossible: 5, choices: 0 }] }, 'no token at which the policy chose'],
    ['trains nothing', { steps: [{ ...step, impossible: 5, logits: {} }] }, 'did not move the logits'],
    ['has no impossible tokens', {}, 'every trained token can have been sampled'],
  ])('refuses a run with a shifted mask that %s', (_, change, problem) => {
    const run: Run = { ...learned, sabotage: shifted ?? null, rewardEnd: 0.4, ...change };
    expect(problemsOf(run).some((one) => one.includes(problem))).toBe(true);
  });
});
