import type { Clock } from '../../src/core/clock.ts';

/** Time that is longer than every pause between retries, and shorter than every time limit. */
const LONGEST_PAUSE_MS = 5_000;

/** A clock that passes the length of each pause in milliseconds to `onPause` and ends it immediately. Its time limits never expire. */
export function impatientClock(onPause: (delayMs: number) => void): Clock {
  return {
    monotonicMs: () => 0,
    nowMs: () => 0,
    schedule: (delayMs, callback) => {
      if (delayMs > LONGEST_PAUSE_MS) return () => {};
      onPause(delayMs);
      queueMicrotask(callback);
      return () => {};
    },
  };
}
