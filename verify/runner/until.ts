import { sleep, systemClock } from '@floe-rl/core';

/** Default time in ms between two checks of a condition. */
const POLL_INTERVAL_MS = 20;

/** Polls `condition` until it is true or `limitMs` have passed. Resolves to whether it became true. */
export async function until(
  condition: () => boolean,
  limitMs: number,
  intervalMs: number = POLL_INTERVAL_MS,
): Promise<boolean> {
  const deadlineMs = systemClock.monotonicMs() + limitMs;
  while (!condition()) {
    if (systemClock.monotonicMs() > deadlineMs) return false;
    await sleep(systemClock, intervalMs);
  }
  return true;
}
