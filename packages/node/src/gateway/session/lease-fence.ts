import type { Clock } from '@floe-rl/core';
import type { Attempt, Renewal } from './attempt.ts';

/** Interval at which {@link LeaseFence} checks whether the process was suspended. */
const CHECK_INTERVAL_MS = 500;
/**
 * When a check is late by at least this time, the process counts as suspended since the last check, for example because the machine slept.
 * Garbage collection causes shorter delays.
 */
const MIN_PAUSE_MS = 1_000;

export type LeaseFenceOptions = {
  readonly clock: Clock;
  readonly live: () => readonly Attempt[];
  /** Returns the longest interval between two heartbeats, in milliseconds, while the server can be reached. */
  readonly beatMs: () => number;
  /** Called when the process runs again after it was suspended, with the length of the suspension. */
  readonly onWake: (pausedMs: number) => void;
};

/**
 * Stops sessions with a lease that expired while this process was suspended, before data of these sessions can leave the process. An
 * unreachable server is no reason to stop a session: leases do not expire while the server is down, and if only the network failed, the
 * server refuses late results.
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

  /**
   * Returns the current times. If a request that is sent after this call renews the lease, the lease starts at these times. The caller
   * records them on the attempt when that request has succeeded.
   */
  now(): Renewal {
    this.check();
    return { atMs: this.checkedMs, pausedMs: this.pausedMs };
  }

  /**
   * Returns the renewal to record for a new lease that has just arrived. `requested` is what {@link now} returned before the lease was
   * requested. If this process was suspended since then, the server may have granted the lease before the suspension, so the suspended time
   * counts against the lease.
   */
  renewalOnArrival(requested: Renewal): Renewal {
    const { atMs, pausedMs } = this.now();
    return { atMs: atMs - (pausedMs - requested.pausedMs), pausedMs: requested.pausedMs };
  }

  /**
   * Stops the attempts with a lease that expired while this process was suspended. The check is cheap and must run before any data leaves
   * the node.
   */
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
   * Whether the lease has expired because this process was suspended. Then the lease time is over, and apart from suspensions the process ran
   * for at most two heartbeat intervals since the renewal. If it ran longer, an unreachable server may be the reason why the lease was not
   * renewed.
   */
  hasExpired({ lease, renewal }: Attempt): boolean {
    const ageMs = this.checkedMs - renewal.atMs;
    const pausedMs = this.pausedMs - renewal.pausedMs;
    return ageMs >= lease.lease_seconds * 1000 && ageMs - pausedMs <= 2 * this.options.beatMs();
  }
}
