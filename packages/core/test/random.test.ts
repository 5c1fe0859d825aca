import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { pickOne, randomBelow, seededRandom, shuffled } from '../src/random.ts';

const draws = (seed: number): number[] => Array.from({ length: 5 }, seededRandom(seed));

describe('seededRandom', () => {
  it('returns equal numbers for equal seeds, and others for other seeds', () => {
    expect(draws(7)).toEqual(draws(7));
    expect(draws(8)).not.toEqual(draws(7));
  });

  it('distinguishes seeds that differ only above 32 bits', () => {
    expect(draws(7 + 2 ** 32)).not.toEqual(draws(7));
  });
});

describe('randomBelow', () => {
  it('returns each integer below the bound about equally often', () => {
    const random = seededRandom(1);
    const drawn = Array.from({ length: 3_000 }, () => randomBelow(random, 3));
    for (const value of [0, 1, 2]) {
      expect(Math.abs(drawn.filter((one) => one === value).length - 1_000)).toBeLessThan(100);
    }
  });
});

describe('shuffled and pickOne', () => {
  it('keep the items', () => {
    fc.assert(
      fc.property(fc.array(fc.integer()), fc.nat(), (items, seed) => {
        const random = seededRandom(seed);
        expect(shuffled(random, items).sort()).toEqual([...items].sort());
        if (items.length > 0) expect(items).toContain(pickOne(random, items));
        else expect(() => pickOne(random, items)).toThrow('there is no item');
      }),
    );
  });
});
