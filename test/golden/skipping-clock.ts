import { type Clock, systemClock } from '@floe-rl/core';

/**
 * A clock whose monotonic time a test can move forward, so that cached values expire without waiting. It uses the timers of the system clock.
 */
export class SkippingClock implements Clock {
  private readonly base: () => number;
  private skippedMs = 0;
  readonly nowMs = systemClock.nowMs;
  readonly schedule = systemClock.schedule;

  /**
   * `base` returns the monotonic time to which the skipped time is added. With `() => 0`, the time advances only when the test moves it.
   */
  constructor(base = systemClock.monotonicMs) {
    this.base = base;
  }

  monotonicMs(): number {
    return this.base() + this.skippedMs;
  }

  skip(ms: number): void {
    this.skippedMs += ms;
  }
}
