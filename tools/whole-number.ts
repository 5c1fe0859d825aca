import { FloeError } from '@floe-rl/core';

/**
 * Returns the value of an option as a whole number. Throws `bad_request`, which names the option, unless the value is a whole number of at
 * least `least`.
 */
export function wholeNumber(option: string, text: string, least = 1): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && Number.isSafeInteger(value) && value >= least) return value;
  throw new FloeError(
    'bad_request',
    `--${option} must be a whole number of at least ${least}, but is ${JSON.stringify(text)}`,
  );
}
