import type { Clock } from '@floe-rl/core';
import type { Store, StoreTables } from '../store/index.ts';

/** Interval at which the monotonic clock is read, so that the service time advances even when no operation reads it. */
const TICK_MS = 500;
/**
 * The most milliseconds that one reading of the monotonic clock can add to the service time. A longer gap means that the process was suspended
 * and could not receive heartbeats.
 */
const MAX_STEP_MS = 2 * TICK_MS;

/**
 * The time that decides when leases and back-offs end: the number of milliseconds that the service has been running. It is stored, and
 * continues after a restart. It follows the monotonic clock, so a jump of the wall clock ends no lease. It does not advance while no server
 * runs, nor while the only server is suspended. After a restart or a suspension, each lease therefore still has the time that it had left.
 * Servers that share a store follow the server whose time is furthest ahead.
 */
export class ServiceTime {
  private readonly clock: Clock;
  private readonly store: Store;
  private currentMs = 0;
  /** Reading of the monotonic clock in milliseconds at the latest call of `nowMs`. */
  private readMs: number;
  private cancelTick = (): void => {};

  private constructor(clock: Clock, store: Store) {
    this.clock = clock;
    this.store = store;
    this.readMs = clock.monotonicMs();
  }

  /** Creates a service time that continues from the stored one. Throws `store_unavailable` when the store fails. */
  static async start(clock: Clock, store: Store): Promise<ServiceTime> {
    const time = new ServiceTime(clock, store);
    await time.persist();
    time.tick();
    return time;
  }

  nowMs(): number {
    const monotonicMs = this.clock.monotonicMs();
    this.currentMs += Math.min(monotonicMs - this.readMs, MAX_STEP_MS);
    this.readMs = monotonicMs;
    return this.currentMs;
  }

  /** Stores the current time of the service clock. If another server on the same store has stored a later time, continues from that time. */
  async persist(): Promise<void> {
    this.catchUp(await this.store.transaction((tables) => tables.serviceTime.advance(this.nowMs())));
  }

  /**
   * Returns the service time that all servers on this store have in common: the later of this server's own time and the latest stored time.
   * Leases use this time. With separate times, a server whose clock is ahead would expire leases of another server too early.
   */
  async sharedNowMs(tables: StoreTables): Promise<number> {
    this.catchUp(await tables.serviceTime.get());
    return this.nowMs();
  }

  /** Stops the regular reading of the clock. */
  stop(): void {
    this.cancelTick();
  }

  private catchUp(storedMs: number): void {
    this.currentMs = Math.max(this.nowMs(), storedMs);
  }

  private tick(): void {
    this.nowMs();
    this.cancelTick = this.clock.schedule(TICK_MS, () => this.tick());
  }
}
