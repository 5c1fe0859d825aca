/** Returns a random number in [0, 1). It is passed as an argument to code that chooses at random, so that simulations can seed it. */
export type RandomSource = () => number;

/** Returns numbers of `Math.random`. Must not be used for secrets; tokens and keys come from `node:crypto`. */
export const systemRandom: RandomSource = () => Math.random();

/**
 * Returns a generator of pseudo-random numbers in [0, 1) (mulberry32). The same seed gives the same numbers, so that a run can be repeated.
 * All 53 bits of an integer seed count.
 */
export function seededRandom(seed: number): RandomSource {
  let state = (seed ^ Math.imul(Math.floor(seed / 2 ** 32), 0x9e3779b9)) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Returns a random integer from 0 to `bound` - 1. */
export function randomBelow(random: RandomSource, bound: number): number {
  return Math.floor(random() * bound);
}

/** Returns a random item. Throws when there is none. */
export function pickOne<T>(random: RandomSource, items: readonly T[]): T {
  if (items.length === 0) throw new Error('there is no item to pick');
  return items[randomBelow(random, items.length)] as T;
}

/** Returns the items in a random order. */
export function shuffled<T>(random: RandomSource, items: readonly T[]): T[] {
  const result = [...items];
  for (let last = result.length - 1; last > 0; last--) {
    const other = randomBelow(random, last + 1);
    [result[last], result[other]] = [result[other] as T, result[last] as T];
  }
  return result;
}
