import { type BatchAccept, type BatchOrder, batchStreamRequestSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { judgeGroup } from '../../../src/rollout/batches/acceptance.ts';
import { startableGroups } from '../../../src/rollout/batches/admission.ts';
import { planEpoch, type RowHistory } from '../../../src/rollout/batches/curriculum.ts';

const stream = batchStreamRequestSchema.parse({ source: { kind: 'endless' }, task: {} });
const accept = (fields: Partial<BatchAccept> = {}): BatchAccept => ({ ...stream.accept, ...fields });
const order = (fields: Partial<BatchOrder> = {}): BatchOrder => ({ ...stream.order, ...fields });

const sample = (reward: number | null, inBaseline = true) => ({
  reward,
  outcome: 'completed' as const,
  policy: { use: 'train' as const, in_baseline: inBaseline },
  unusable: reward === null ? ('no_reward' as const) : null,
});
const TASK = { hasEvaluator: true, numSamples: 4 };

describe('judging a group', () => {
  it.each([
    [[1, 0, 0, 0], {}, null],
    [[1, 1, 1, 1], {}, 'all_right'],
    [[0, 0, 0, 0], {}, 'all_wrong'],
    [[0.5, 0.5], {}, 'equal_rewards'],
    [[3, 8], {}, null],
    [[-1, -1], {}, 'all_wrong'],
    [[1, 1], { all_right: 'keep' }, null],
    [[0, 0], { all_right: 'keep' }, 'all_wrong'],
    [[0, 0], { zero_variance: 'keep' }, null],
    [[1, null, null, null], {}, 'few_usable'],
    [[1, 0], { min_usable: 3 }, 'few_usable'],
    [[1, 0, 0], { min_resolved: 2 }, 'few_resolved'],
    [[0.6, 0.2], { min_resolved: 1, resolved_reward: 0.5 }, null],
  ] as const)('of rewards %j with %j is %s', (rewards, fields, rejection) => {
    const samples = rewards.map((reward) => sample(reward));
    expect(judgeGroup(samples, accept(fields), TASK).rejection).toBe(rejection);
  });

  it('ignores rewards that do not count in the baseline', () => {
    const samples = [sample(1), sample(1), sample(0, false)];
    expect(judgeGroup(samples, accept(), TASK)).toMatchObject({ rejection: 'all_right', meanReward: 1, usable: 3 });
  });

  it('keeps groups without rewards when the task has no evaluator, and groups of one sample', () => {
    const unrewarded = { ...sample(null), unusable: null };
    const noEvaluator = { hasEvaluator: false, numSamples: 2 };
    expect(judgeGroup([unrewarded, unrewarded], accept(), noEvaluator).rejection).toBeNull();
    expect(judgeGroup([sample(1)], accept(), { hasEvaluator: true, numSamples: 1 }).rejection).toBeNull();
  });
});

describe('admission', () => {
  const state = {
    requested: 32,
    ready: 0,
    running: 0,
    batchSize: 32,
    perGroup: 1,
    maxStaleness: 1,
    oversampling: 1,
  };

  it('lets accepted and running groups fill max_staleness batches beyond the requested one', () => {
    expect(startableGroups(state)).toBe(64);
    expect(startableGroups({ ...state, ready: 40, running: 20 })).toBe(4);
    expect(startableGroups({ ...state, ready: 64 })).toBe(0);
    expect(startableGroups({ ...state, requested: 0, maxStaleness: 0 })).toBe(0);
  });

  it('lets at least one group run while resolved samples are missing', () => {
    expect(startableGroups({ ...state, perGroup: 8 })).toBe(8);
    expect(startableGroups({ ...state, perGroup: 8, ready: 63 })).toBe(1);
    expect(startableGroups({ ...state, perGroup: 8, ready: 64 })).toBe(0);
  });

  it('starts more groups than are missing with oversampling, but none when nothing is missing', () => {
    expect(startableGroups({ ...state, ready: 62, oversampling: 2.5 })).toBe(5);
    expect(startableGroups({ ...state, ready: 64, oversampling: 2.5 })).toBe(0);
    expect(startableGroups({ ...state, ready: 70, oversampling: 2.5 })).toBe(0);
  });
});

describe('the plan of an epoch', () => {
  const history = (rowIndex: number, fields: Partial<RowHistory> = {}): RowHistory => ({
    rowIndex,
    lastEpoch: null,
    meanReward: null,
    lastResult: null,
    ...fields,
  });
  const rowsArbitrary = fc
    .uniqueArray(fc.nat(500), { minLength: 1, maxLength: 60 })
    .chain((indexes) =>
      fc.tuple(
        ...indexes.map((index) =>
          fc
            .record({ meanReward: fc.option(fc.double({ min: 0, max: 1, noNaN: true })) })
            .map((fields) => history(index, fields)),
        ),
      ),
    );

  it('has every row once, in the same order on every server, and another order in the next epoch', () => {
    fc.assert(
      fc.property(
        rowsArbitrary,
        fc.constantFrom('sequential', 'shuffled', 'adaptive' as const),
        fc.nat(9),
        (rows, kind, seed) => {
          const plan = planEpoch(rows, 1, order({ kind, seed }), 1);
          expect([...plan].sort((a, b) => a - b)).toEqual(rows.map(({ rowIndex }) => rowIndex).sort((a, b) => a - b));
          expect(planEpoch(rows, 1, order({ kind, seed }), 1)).toEqual(plan);
        },
      ),
    );
    const many = Array.from({ length: 50 }, (_, index) => history(index));
    expect(planEpoch(many, 1, order({ kind: 'shuffled' }), 1)).not.toEqual(
      planEpoch(many, 2, order({ kind: 'shuffled' }), 1),
    );
  });

  it('leaves solved rows out for skip_solved epochs, unless all are solved', () => {
    const solved = history(0, { lastEpoch: 2, lastResult: 'all_right' });
    const rows = [solved, history(1, { lastEpoch: 2, lastResult: 'other' })];
    expect(planEpoch(rows, 3, order({ skip_solved: 1 }), 1)).toEqual([1]);
    expect(planEpoch(rows, 4, order({ skip_solved: 1 }), 1)).toEqual([0, 1]);
    expect(planEpoch([solved], 3, order({ skip_solved: 1 }), 1)).toEqual([0]);
  });

  it('visits a share of the rows that were all wrong a second time', () => {
    const rows = [0, 1, 2, 3].map((index) =>
      history(index, { lastEpoch: 0, lastResult: index < 3 ? 'all_wrong' : 'other' }),
    );
    const plan = planEpoch(rows, 1, order({ replay_hard: 0.5 }), 1);
    expect(plan).toHaveLength(6);
    expect(plan.filter((row) => row === 3)).toHaveLength(1);
    expect(planEpoch(rows, 1, order({ replay_hard: 0 }), 1)).toEqual([0, 1, 2, 3]);
  });

  it('puts rows of middling difficulty first with the order adaptive', () => {
    const rows = Array.from({ length: 200 }, (_, index) => history(index, { meanReward: index < 100 ? 0.5 : 1 }));
    const plan = planEpoch(rows, 1, order({ kind: 'adaptive' }), 1);
    expect(plan.slice(0, 100).filter((row) => row < 100).length).toBeGreaterThan(85);
  });
});
