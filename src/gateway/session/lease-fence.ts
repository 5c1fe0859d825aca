import type { Clock } from '../../core/clock.ts';
import type { Attempt } from './attempt.ts';

/** Between two looks at the clock. */
const TICK_MS = 500;
/** A longer gap means that the process did not run: it was stopped, or its machine slept. Garbage collection takes less. */
const PAUSE_MS = 1_000;

/** The moment when a lease was last known to be good. */
export type Renewal = {
  readonly atMs: number;
  /** How long the process had stood still by then, in all. */
  readonly pausedMs: number;
};

export type LeaseFenceOptions = {
  readonly clock: Clock;
  readonly live: () => readonly Attempt[];
  /** In which a node that runs has heard of the server, as long as that is there. */
  readonly beatMs: () => number;
  /** The process runs again. */
  readonly onWake: (pausedMs: number) => void;
};

/**
 * Ends sessions whose leases ran out while this process stood still, before anything of them can leave it. A server that
 * cannot be reached is no reason: its leases do not run out while it is down, and if they did, it refuses what is late.
 */
export class LeaseFence {
  private readonly options: LeaseFenceOptions;
  private lookedMs: number;
  private pausedMs = 0;
  private cancel: () => void = () => {};

  constructor(options: LeaseFenceOptions) {
    this.options = options;
    this.lookedMs = options.clock.monotonicMs();
  }

  start(): void {
    this.look();
    this.cancel = this.options.clock.schedule(TICK_MS, () => this.start());
  }

  close(): void {
    this.cancel();
  }

  /** To be taken before a lease is asked to be renewed, and given to the attempt when it was. */
  now(): Renewal {
    this.look();
    return { atMs: this.lookedMs, pausedMs: this.pausedMs };
  }

  /** How good a lease is that was asked for at `asked` and has come now: it may have been given before this process stood still. */
  arrived(asked: Renewal): Renewal {
    const { atMs, pausedMs } = this.now();
    return { atMs: atMs - (pausedMs - asked.pausedMs), pausedMs: asked.pausedMs };
  }

  /** Stops what must not go on. To be called before anything leaves the node; cheap. */
  check(): void {
    this.look();
  }

  private look(): void {
    const nowMs = this.options.clock.monotonicMs();
    const gapMs = nowMs - this.lookedMs;
    this.lookedMs = nowMs;
    if (gapMs - TICK_MS < PAUSE_MS) return;
    this.pausedMs += gapMs;
    for (const attempt of this.options.live()) if (this.hasExpired(attempt)) attempt.stop('lease_lost');
    this.options.onWake(gapMs);
  }

  /** Certain only when the process ran for so little of the time that no renewal can have failed for want of the server. */
  hasExpired({ lease, renewal }: Attempt): boolean {
    const ageMs = this.lookedMs - renewal.atMs;
    const pausedMs = this.pausedMs - renewal.pausedMs;
    return ageMs >= lease.lease_seconds * 1000 && ageMs - pausedMs <= 2 * this.options.beatMs();
  }
}
