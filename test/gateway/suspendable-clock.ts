import { VirtualClock } from '../../src/core/virtual-clock.ts';

/** The clock of a process that can be suspended. During a suspension time passes, but no timer fires. */
export class SuspendableClock extends VirtualClock {
  private suspendedMs = 0;

  override monotonicMs(): number {
    return super.monotonicMs() + this.suspendedMs;
  }

  suspend(ms: number): void {
    this.suspendedMs += ms;
  }
}
