import type { Clock } from '@floe-rl/core';

/** Longest delay that counts as a pause between retries. Longer delays are taken to be time limits. */
const LONGEST_PAUSE_MS = 5_000;

/**
 * Makes a clock whose time stands still, for tests. It reports the length of each pause between retries to `onPause` and ends the pause
 * immediately. Its time limits never expire.
 */
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
