import type { Clock } from '../../core/clock.ts';

/** A single failure may be caused by one bad request; this many in a row are the engine's. */
const FAILURES_UNTIL_OPEN = 3;
/** How long an engine is excluded before one call tries it. */
export const OPEN_MS = 5_000;

/**
 * Excludes an engine after consecutive failures. Closed: calls may use it. Open: for {@link OPEN_MS} none should. Half open after
 * that: one call at a time, until one succeeds.
 */
export class CircuitBreaker {
  private readonly clock: Clock;
  private failures = 0;
  private openUntilMs = 0;
  private probes = 0;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  get isClosed(): boolean {
    return this.failures < FAILURES_UNTIL_OPEN;
  }

  /** Whether it is open and not half open yet. */
  get isCoolingDown(): boolean {
    return !this.isClosed && this.clock.monotonicMs() < this.openUntilMs;
  }

  /** Whether a call may choose the engine. */
  get admitsCall(): boolean {
    return this.isClosed || (!this.isCoolingDown && this.probes === 0);
  }

  /** Records the start of a call; the returned function, to be called once, records its end. */
  begin(): () => void {
    if (this.isClosed) return () => {};
    this.probes++;
    return () => {
      this.probes--;
    };
  }

  recordSuccess(): void {
    this.failures = 0;
  }

  recordFailure(): void {
    this.failures++;
    if (!this.isClosed) this.openUntilMs = this.clock.monotonicMs() + OPEN_MS;
  }
}
