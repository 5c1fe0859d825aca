import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { fairShares, type TrainerDemand } from '../../../src/rollout/sessions/fair-shares.ts';

const demand = (trainer: string, live = 0, weight = 1): TrainerDemand => ({ trainer, live, weight });

describe('fairShares', () => {
  it('gives all slots to a single trainer and none when there is no trainer or no slot', () => {
    expect([...fairShares(7, [demand('a', 100)])]).toEqual([['a', 7]]);
    expect([...fairShares(7, [])]).toEqual([]);
    expect([...fairShares(0, [demand('a')])]).toEqual([]);
  });

  it('lets the trainer with fewer sessions catch up first, whatever the order of the list', () => {
    for (const trainers of [
      [demand('a', 4), demand('b', 0)],
      [demand('b', 0), demand('a', 4)],
    ]) {
      expect(fairShares(3, trainers)).toEqual(new Map([['b', 3]]));
      expect(fairShares(6, trainers)).toEqual(
        new Map([
          ['a', 1],
          ['b', 5],
        ]),
      );
    }
  });

  it('gives a trainer of weight 3 three times as many slots as one of weight 1', () => {
    const shares = fairShares(12, [demand('a', 0, 1), demand('b', 0, 3)]);
    expect(shares).toEqual(
      new Map([
        ['a', 3],
        ['b', 9],
      ]),
    );
  });

  const trainers = fc.uniqueArray(
    fc.record({
      trainer: fc.string({ minLength: 1, maxLength: 3 }),
      live: fc.nat({ max: 30 }),
      weight: fc.constantFrom(0.5, 1, 2, 3),
    }),
    { selector: (one) => one.trainer, minLength: 1, maxLength: 6 },
  );

  it('gives out all slots, each to the trainer with the lowest load', () => {
    fc.assert(
      fc.property(fc.nat({ max: 60 }), trainers, (slots, list) => {
        const shares = fairShares(slots, list);
        const granted = (trainer: string): number => shares.get(trainer) ?? 0;
        expect([...shares.values()].reduce((sum, share) => sum + share, 0)).toBe(slots);
        for (const rich of list.filter((one) => granted(one.trainer) > 0)) {
          for (const poor of list) {
            const givenAway = (poor.live + granted(poor.trainer) + 1) / poor.weight;
            expect((rich.live + granted(rich.trainer)) / rich.weight).toBeLessThanOrEqual(
              poor === rich ? givenAway : givenAway + 1e-9,
            );
          }
        }
      }),
    );
  });
});
