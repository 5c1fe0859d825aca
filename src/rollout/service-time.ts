import type { Clock } from '../core/clock.ts';
import type { Store, StoreTables } from '../store/index.ts';

/** How often the time is looked at while nobody asks for it. */
const TICK_MS = 500;
/** Of a longer gap between two looks this much counts: the process stood still, and could not have heard a heartbeat. */
const MAX_STEP_MS = 2 * TICK_MS;

/**
 * Time for leases and backoffs: milliseconds that the service has been running, carried over restarts in the store. It
 * follows the monotonic clock, so a jump of the wall clock ends no lease. It stands still while no server runs, and while the
 * only one is stopped or its machine sleeps: a restart or a pause leaves each lease the time that it had left. Servers on
 * one store follow the one that is furthest.
 */
export class ServiceTime {
  private readonly clock: Clock;
  private readonly store: Store;
  private currentMs = 0;
  private lookedMs: number;
  private cancelTick = (): void => {};

  private constructor(clock: Clock, store: Store) {
    this.clock = clock;
    this.store = store;
    this.lookedMs = clock.monotonicMs();
  }

  static async start(clock: Clock, store: Store): Promise<ServiceTime> {
    const time = new ServiceTime(clock, store);
    await time.persist();
    time.tick();
    return time;
  }

  nowMs(): number {
    const monotonicMs = this.clock.monotonicMs();
    this.currentMs += Math.min(monotonicMs - this.lookedMs, MAX_STEP_MS);
    this.lookedMs = monotonicMs;
    return this.currentMs;
  }

  /** Stores the current time; follows another server on the same store that is ahead. */
  async persist(): Promise<void> {
    this.follow(await this.store.transaction((tables) => tables.serviceTime.advance(this.nowMs())));
  }

  /**
   * The current time, no earlier than what any server on this store had stored. Leases are given and renewed by it: one that
   * a server which lags behind gave would have run out already for the others.
   */
  async sharedNowMs(tables: StoreTables): Promise<number> {
    this.follow(await tables.serviceTime.get());
    return this.nowMs();
  }

  /** Time stands still from now on. */
  stop(): void {
    this.cancelTick();
  }

  private follow(storedMs: number): void {
    this.currentMs = Math.max(this.nowMs(), storedMs);
  }

  private tick(): void {
    this.nowMs();
    this.cancelTick = this.clock.schedule(TICK_MS, () => this.tick());
  }
}
