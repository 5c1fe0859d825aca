import type { RandomSource } from './random.ts';

export type Backoff = {
  /** Pause after the first failure, in milliseconds; it doubles with each further one. */
  readonly baseMs: number;
  /** Longest pause, in milliseconds. */
  readonly maxMs: number;
};

/** Beyond this many doublings every pause is the longest one; keeps the power finite. */
const MAX_DOUBLINGS = 30;

/** The pause in milliseconds after `failures` consecutive failures (1 or more): `baseMs`, doubled each time, at most `maxMs`. */
export function backoffMs({ baseMs, maxMs }: Backoff, failures: number): number {
  return Math.min(maxMs, baseMs * 2 ** Math.min(failures - 1, MAX_DOUBLINGS));
}

/** The same pause shortened at random by up to half, so that clients that failed together do not retry together. */
export function jitteredBackoffMs(backoff: Backoff, failures: number, random: RandomSource): number {
  return backoffMs(backoff, failures) * (0.5 + random() / 2);
}
