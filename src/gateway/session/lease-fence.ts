import type { Clock } from '../../core/clock.ts';
import type { Attempt, Renewal } from './attempt.ts';

/** Interval of the checks. */
const CHECK_INTERVAL_MS = 500;
/**
 * A check that is late by this much or more means that the process did not run: it was suspended, or its machine slept. Garbage
 * collection takes less.
 */
const MIN_PAUSE_MS = 1_000;

export type LeaseFenceOptions = {
  readonly clock: Clock;
  readonly live: () => readonly Attempt[];
  /** Longest interval of heartbeats, in milliseconds, while the server can be reached. */
  readonly beatMs: () => number;
  /** Called with the length of the pause when the process runs again after it was suspended. */
  readonly onWake: (pausedMs: number) => void;
};

/**
 * Ends sessions whose leases expired while this process was suspended, before anything of them can leave it. An unreachable server is
 * no reason to end a session: leases do not expire while the server is down, and otherwise it refuses late results.
 */
export class LeaseFence {
  private readonly options: LeaseFenceOptions;
  private checkedMs: number;
  private pausedMs = 0;
  private cancel: () => void = () => {};

  constructor(options: LeaseFenceOptions) {
    this.options = options;
    this.checkedMs = options.clock.monotonicMs();
  }

  start(): void {
    this.check();
    this.cancel = this.options.clock.schedule(CHECK_INTERVAL_MS, () => this.start());
  }

  close(): void {
    this.cancel();
  }

  /** The renewal of a lease that is requested now. To be taken before the request and given to the attempt when it has succeeded. */
  now(): Renewal {
    this.check();
    return { atMs: this.checkedMs, pausedMs: this.pausedMs };
  }

  /**
   * The renewal of a lease that was requested at `requested` and has arrived now. The server may have granted it before a pause of
   * this process, so such a pause counts against the lease.
   */
  renewalOnArrival(requested: Renewal): Renewal {
    const { atMs, pausedMs } = this.now();
    return { atMs: atMs - (pausedMs - requested.pausedMs), pausedMs: requested.pausedMs };
  }

  /** Stops the attempts whose leases expired during a pause of this process. Cheap; call it before anything leaves the node. */
  check(): void {
    const nowMs = this.options.clock.monotonicMs();
    const gapMs = nowMs - this.checkedMs;
    this.checkedMs = nowMs;
    if (gapMs - CHECK_INTERVAL_MS < MIN_PAUSE_MS) return;
    this.pausedMs += gapMs;
    for (const attempt of this.options.live()) if (this.hasExpired(attempt)) attempt.stop('lease_lost');
    this.options.onWake(gapMs);
  }

  /**
   * True when the lease has expired because of pauses of this process. That is so when the process ran for at most two heartbeat
   * intervals since the renewal: in a longer time, an unreachable server may be the reason for the missing renewal.
   */
  hasExpired({ lease, renewal }: Attempt): boolean {
    const ageMs = this.checkedMs - renewal.atMs;
    const pausedMs = this.pausedMs - renewal.pausedMs;
    return ageMs >= lease.lease_seconds * 1000 && ageMs - pausedMs <= 2 * this.options.beatMs();
  }
}
