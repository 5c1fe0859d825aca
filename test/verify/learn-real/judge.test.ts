import { describe, expect, it } from 'vitest';
import { problemsOf, type TrainerRun } from '../../../verify/learn-real/judge.ts';

const learned: TrainerRun = {
  ...{ reward_start: 0.3, reward_end: 0.9, steps: 60, curve: [] },
  ...{ traces: 500, tokens_compared: 17_000, max_abs_logprob_diff: 6e-6, p999: 2e-6, ratio_mean: 1.0001 },
  ...{ tokens_without_version: 5, spanning_traces: 13, spanning_replies: 5 },
  ...{ max_abs_logprob_diff_spanning: 7e-7, max_abs_logprob_diff_kept_cache: 4e-4 },
  ...{ taken_samples: 400, unmatched_samples: 0, notices_shifted_logprobs: true, notices_shifted_ids: true },
};

describe('the verdict about a run of a real trainer', () => {
  it('accepts a run that learned on exact tokens', () => {
    expect(problemsOf(learned, { learns: true })).toEqual([]);
  });

  it.each<[string, Partial<TrainerRun>, string]>([
    ['does not learn', { reward_end: 0.8 }, 'the reward went from 0.30 to 0.80'],
    ['has learned before', { reward_start: 0.6 }, 'the reward went from 0.60 to 0.90'],
    ['compared nothing', { tokens_compared: 0 }, 'no token was compared'],
    ['has other log-probabilities', { max_abs_logprob_diff: 0.002 }, 'log-probabilities differ by up to 0.002'],
    ['has another probability on average', { ratio_mean: 0.98 }, 'the mean ratio is 0.98'],
    ['has a ratio that is not a number', { ratio_mean: Number.NaN }, 'the mean ratio is NaN'],
    ['took nothing', { taken_samples: 0 }, 'the trainer took no samples'],
    ['took samples that are no traces', { unmatched_samples: 2 }, '2 samples of the trainer are in no trace'],
    [
      'misses shifted log-probabilities',
      { notices_shifted_logprobs: false },
      'shifted log-probabilities are not noticed',
    ],
    ['misses shifted ids', { notices_shifted_ids: false }, 'shifted ids are not noticed'],
  ])('refuses a run that %s', (_, change, problem) => {
    expect(problemsOf({ ...learned, ...change }, { learns: true })).toEqual([problem]);
  });

  it('accepts a short run without a higher reward, and refuses wrong log-probabilities in it', () => {
    const short = { ...learned, reward_end: 0.3 };
    expect(problemsOf(short, { learns: false })).toEqual([]);
    expect(problemsOf({ ...short, max_abs_logprob_diff: 1 }, { learns: false })).toHaveLength(1);
  });
});
