import { VirtualClock } from '../../src/core/virtual-clock.ts';

/** The clock of a process that can be stopped: time goes on, its timers do not fire. */
export class StoppableClock extends VirtualClock {
  private stoodMs = 0;

  override monotonicMs(): number {
    return super.monotonicMs() + this.stoodMs;
  }

  standStill(ms: number): void {
    this.stoodMs += ms;
  }
}
