import type { GroupFacts, SessionTotals } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { adviceOf } from '../../dashboard/src/advice.ts';

const totals = (counts: Record<string, number>): SessionTotals[] =>
  Object.entries(counts).map(([outcome, sessions]) => ({ by: { outcome }, sessions }) as SessionTotals);

const groups = (count: number, equal: number): GroupFacts[] =>
  Array.from({ length: count }, (_, index) => ({ usable: 4, rewards: 4, is_degenerate: index < equal }) as GroupFacts);

describe('the advice about ended sessions', () => {
  it('names outcomes that are frequent, with the filter that shows them', () => {
    expect(adviceOf(totals({ completed: 80, truncated_context: 20 }), [])).toEqual([
      {
        text: '20 % of the sessions of the last day filled their context: their agents need more room, or shorter tool results (truncated_context).',
        path: ['sessions'],
        params: { outcome: 'truncated_context' },
      },
    ]);
    expect(adviceOf(totals({ completed: 95, truncated_context: 5 }), [])).toEqual([]);
  });

  it('says nothing about a few sessions', () => {
    expect(adviceOf(totals({ completed: 1, infra_error: 9 }), [])).toEqual([]);
  });

  it('reports groups that teach nothing, and leaves out those with a single reward', () => {
    expect(adviceOf([], groups(20, 12)).map(({ text }) => text)).toEqual([
      '60 % of the newest 20 groups have equal rewards and teach nothing: their tasks are too easy or too hard.',
    ]);
    expect(adviceOf([], groups(20, 9))).toEqual([]);
    const single = groups(20, 20).map((group) => ({ ...group, rewards: 1 }));
    expect(adviceOf([], single)).toEqual([]);
  });
});
