/** Returns a number in [0, 1). Passed as an argument wherever a choice is random, so that simulations can seed it. */
export type RandomSource = () => number;

/** Not for secrets: tokens and keys use `node:crypto`. */
export const systemRandom: RandomSource = () => Math.random();
