import type { SessionResult } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { resultWith, traceOf } from '../../../packages/data/test/generation/results.ts';
import { rewardCurve } from '../../../verify/learn-real/curve.ts';

/** A session whose tokens were sampled by the versions. */
function session(versions: readonly (string | null)[], reward: number | null): SessionResult {
  const version_spans = versions.map((version, start) => ({ start, end: start + 1, version }));
  return resultWith([traceOf({ version_spans })], { reward });
}

describe('the curve of rewards', () => {
  it('averages sessions by the step of their oldest version', () => {
    const results = [session(['step-0'], 0), session(['step-1', 'step-0'], 1), session(['step-3'], 1)];
    expect(rewardCurve(results, 5)).toEqual([
      { fromStep: 0, sessions: 2, reward: 0.5 },
      { fromStep: 3, sessions: 1, reward: 1 },
    ]);
  });

  it('joins steps when there are more than ten', () => {
    expect(rewardCurve([session(['7'], 1), session(['8'], 0)], 30)).toEqual([
      { fromStep: 4, sessions: 1, reward: 1 },
      { fromStep: 8, sessions: 1, reward: 0 },
    ]);
  });

  it('leaves out sessions without a reward or without a known version', () => {
    expect(rewardCurve([session(['1'], null), session([null], 1), session([], 1)], 5)).toEqual([]);
  });
});
