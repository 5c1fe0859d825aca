import { VirtualClock } from '@floe-rl/core';

/** A virtual clock of a process that can be suspended. During a suspension the time advances and no timer fires. */
export class SuspendableClock extends VirtualClock {
  private suspendedMs = 0;

  override monotonicMs(): number {
    return super.monotonicMs() + this.suspendedMs;
  }

  suspend(ms: number): void {
    this.suspendedMs += ms;
  }
}
