import type { RandomSource } from './random.ts';

/** Settings of an exponential backoff, whose pause doubles with each consecutive failure. */
export type Backoff = {
  /** Pause after the first failure, in milliseconds. */
  readonly baseMs: number;
  /** Longest pause, in milliseconds. */
  readonly maxMs: number;
};

/**
 * Maximum number of times that the pause is doubled, so that the result stays finite. Every backoff reaches its longest pause after fewer
 * doublings.
 */
const MAX_DOUBLINGS = 30;

/** Returns the pause in milliseconds after `failures` consecutive failures (1 or more). */
export function backoffMs({ baseMs, maxMs }: Backoff, failures: number): number {
  return Math.min(maxMs, baseMs * 2 ** Math.min(failures - 1, MAX_DOUBLINGS));
}

/**
 * Returns the pause of {@link backoffMs} in milliseconds, shortened at random by up to half, so that clients that failed at the same time
 * do not retry at the same time.
 */
export function jitteredBackoffMs(backoff: Backoff, failures: number, random: RandomSource): number {
  return backoffMs(backoff, failures) * (0.5 + random() / 2);
}
