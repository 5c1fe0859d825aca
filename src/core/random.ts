/** Returns a random number in [0, 1). It is passed as an argument to code that chooses at random, so that simulations can seed it. */
export type RandomSource = () => number;

/** Returns numbers of `Math.random`. Must not be used for secrets; tokens and keys come from `node:crypto`. */
export const systemRandom: RandomSource = () => Math.random();
