import type { Clock } from '../../core/clock.ts';

/** A single failure may be one bad request; this many in a row are the engine. */
const FAILURES_UNTIL_OPEN = 3;
/** How long an engine is passed over before one call tries it again. */
export const OPEN_MS = 5_000;

/**
 * Passes an engine over after failures in a row. Closed: calls go through. Open: for {@link OPEN_MS} none should. Half open, from
 * then on: one call at a time, until one succeeds.
 */
export class CircuitBreaker {
  private readonly clock: Clock;
  private failures = 0;
  private openUntilMs = 0;
  private probes = 0;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  get closed(): boolean {
    return this.failures < FAILURES_UNTIL_OPEN;
  }

  /** Open, and not to be tried yet. */
  get cooling(): boolean {
    return !this.closed && this.clock.monotonicMs() < this.openUntilMs;
  }

  /** Whether a call may choose the engine. */
  get admits(): boolean {
    return this.closed || (!this.cooling && this.probes === 0);
  }

  /** A call begins; the returned function, to be called once, tells that it has ended. */
  begin(): () => void {
    if (this.closed) return () => {};
    this.probes++;
    return () => {
      this.probes--;
    };
  }

  succeeded(): void {
    this.failures = 0;
  }

  failed(): void {
    this.failures++;
    if (!this.closed) this.openUntilMs = this.clock.monotonicMs() + OPEN_MS;
  }
}
