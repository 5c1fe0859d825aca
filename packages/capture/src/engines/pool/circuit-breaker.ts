import type { Clock } from '@floe-rl/core';

/**
 * Number of consecutive failures after which an engine is excluded. One failure may be caused by a bad request; three in a row indicate
 * that the engine is faulty.
 */
const FAILURES_UNTIL_OPEN = 3;
/** Time for which an engine is excluded before one call is sent to it as a probe. */
export const OPEN_MS = 5_000;

/**
 * Excludes an engine after consecutive failures. While the breaker is closed, calls may use the engine. While it is open, for {@link
 * OPEN_MS}, calls are sent to other engines if possible. It is then half open and admits one call at a time, until one succeeds.
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

  /** Whether the breaker is open and not half open yet. */
  get isCoolingDown(): boolean {
    return !this.isClosed && this.clock.monotonicMs() < this.openUntilMs;
  }

  /** Whether the breaker permits a call to the engine now. */
  get admitsCall(): boolean {
    return this.isClosed || (!this.isCoolingDown && this.probes === 0);
  }

  /**
   * Records the start of a call. While the breaker is half open, no second call is admitted until the first has ended. The caller calls the
   * returned function once, when its call has ended.
   */
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
