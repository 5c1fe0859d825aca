import type { RandomSource } from './random.ts';

/** An exponential back-off: the pause doubles with each consecutive failure. */
export type Backoff = {
  /** Pause after the first failure, in milliseconds. */
  readonly baseMs: number;
  /** Longest pause, in milliseconds. */
  readonly maxMs: number;
};

/** Keeps the power finite; after this many doublings every back-off has reached its longest pause. */
const MAX_DOUBLINGS = 30;

/** The pause in milliseconds after `failures` consecutive failures (1 or more). */
export function backoffMs({ baseMs, maxMs }: Backoff, failures: number): number {
  return Math.min(maxMs, baseMs * 2 ** Math.min(failures - 1, MAX_DOUBLINGS));
}

/** The same pause shortened at random by up to half, so that clients that failed together do not retry together. */
export function jitteredBackoffMs(backoff: Backoff, failures: number, random: RandomSource): number {
  return backoffMs(backoff, failures) * (0.5 + random() / 2);
}
