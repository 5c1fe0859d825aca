import type { Clock } from '../core/clock.ts';
import type { Store } from '../store/index.ts';

/**
 * Time for leases and backoffs: milliseconds that the service has been running, carried over restarts in the store. It
 * follows the monotonic clock, so a jump of the wall clock ends no lease, and it stands still while no server runs, so a
 * restart leaves each lease the time that it had left.
 */
export class ServiceTime {
  private readonly clock: Clock;
  private readonly store: Store;
  private offsetMs = 0;

  private constructor(clock: Clock, store: Store) {
    this.clock = clock;
    this.store = store;
    this.offsetMs = -clock.monotonicMs();
  }

  static async start(clock: Clock, store: Store): Promise<ServiceTime> {
    const time = new ServiceTime(clock, store);
    await time.persist();
    return time;
  }

  nowMs(): number {
    return this.offsetMs + this.clock.monotonicMs();
  }

  /** Stores the current time; follows another server on the same store that is ahead. */
  async persist(): Promise<void> {
    const stored = await this.store.transaction((tables) => tables.serviceTime.advance(this.nowMs()));
    this.offsetMs += Math.max(0, stored - this.nowMs());
  }
}
