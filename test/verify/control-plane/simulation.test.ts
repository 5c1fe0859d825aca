import { describe, expect, it } from 'vitest';
import { planOf } from '../../../verify/control-plane/plan.ts';
import { simulate } from '../../../verify/control-plane/simulation.ts';

/** For a busy machine: a world takes some 10 ms of a quiet one. */
const PATIENCE_MS = 120_000;

describe('a simulation', () => {
  it(
    'of one seed is the same every time, to the byte',
    async () => {
      for (const seed of [3, 11, 20]) {
        const first = await simulate(seed);
        const second = await simulate(seed);
        expect(second.events.join('\n')).toBe(first.events.join('\n'));
        expect(second.virtualMs).toBe(first.virtualMs);
        expect(first.events.length).toBeGreaterThan(20);
      }
    },
    PATIENCE_MS,
  );

  it(
    'finds every promise kept, in calm worlds and in others',
    async () => {
      const seeds = Array.from({ length: 40 }, (_, i) => 1 + i);
      const kinds = new Set(seeds.map((seed) => planOf(seed).calm));
      expect(kinds.size).toBe(2);
      for (const seed of seeds) expect({ seed, ...(await simulate(seed)).violation }).toEqual({ seed });
    },
    PATIENCE_MS,
  );

  it('has every kind of trouble in some of its worlds', () => {
    const plans = Array.from({ length: 100 }, (_, seed) => planOf(seed));
    expect(new Set(plans.flatMap((plan) => plan.troubles)).size).toBeGreaterThanOrEqual(13);
    expect(plans.some(({ network }) => network.duplicate > 0)).toBe(true);
    expect(plans.some(({ disk }) => disk.unknown > 0)).toBe(true);
    expect(plans.every(({ calm, troubles }) => !calm || troubles.length === 0)).toBe(true);
  });
});
