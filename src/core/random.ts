/** Returns a number in [0, 1). Passed as an argument wherever a choice is random, so that simulations can seed it. */
export type RandomSource = () => number;

/** `Math.random`. Never use it for secrets: tokens and keys come from `node:crypto`. */
export const systemRandom: RandomSource = () => Math.random();
