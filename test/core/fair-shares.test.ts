import fc from 'fast-check';
import { expect, test } from 'vitest';
import { fairShares, type Waiting } from '../../src/core/fair-shares.ts';

const waiting = (trainer: string, live = 0, weight = 1): Waiting => ({ trainer, live, weight });

test('one trainer gets everything, none gets nothing', () => {
  expect([...fairShares(7, [waiting('a', 100)])]).toEqual([['a', 7]]);
  expect([...fairShares(7, [])]).toEqual([]);
  expect([...fairShares(0, [waiting('a')])]).toEqual([]);
});

test('whoever has less catches up first, whatever order they come in', () => {
  for (const trainers of [
    [waiting('a', 4), waiting('b', 0)],
    [waiting('b', 0), waiting('a', 4)],
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

test('a weight of three gets three times as much', () => {
  const shares = fairShares(12, [waiting('a', 0, 1), waiting('b', 0, 3)]);
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

test('all slots are given, and no slot would serve anybody better than who got it', () => {
  fc.assert(
    fc.property(fc.nat({ max: 60 }), trainers, (slots, list) => {
      const shares = fairShares(slots, list);
      const got = (trainer: string): number => shares.get(trainer) ?? 0;
      expect([...shares.values()].reduce((sum, share) => sum + share, 0)).toBe(slots);
      for (const rich of list.filter((one) => got(one.trainer) > 0)) {
        for (const poor of list) {
          const givenAway = (poor.live + got(poor.trainer) + 1) / poor.weight;
          expect((rich.live + got(rich.trainer)) / rich.weight).toBeLessThanOrEqual(
            poor === rich ? givenAway : givenAway + 1e-9,
          );
        }
      }
    }),
  );
});
