const MINUTE_MS = 60_000;

/**
 * Longest time in milliseconds for which unused allowance accumulates. It is a sixtieth of a minute, so the limit per minute can be
 * exceeded by at most a sixtieth.
 */
const MAX_BURST_MS = 1_000;

/**
 * A rate limit, whose allowance grows evenly over each minute. Times are milliseconds of one monotonic clock, which the caller passes with
 * every call. A caller may take more than is available, which makes the level negative. Later callers then wait until the amount that they
 * need is available.
 */
export class TokenBucket {
  private readonly perMs: number;
  private readonly capacity: number;
  private level: number;
  private asOfMs: number;

  /** Creates a full bucket. Throws RangeError unless `perMinute` is at least 1. */
  constructor(perMinute: number, nowMs: number) {
    if (!(perMinute >= 1)) throw new RangeError(`an allowance must be at least 1 a minute, not ${perMinute}`);
    this.perMs = perMinute / MINUTE_MS;
    this.capacity = Math.max(1, this.perMs * MAX_BURST_MS);
    this.level = this.capacity;
    this.asOfMs = nowMs;
  }

  /**
   * Returns the milliseconds until `amount` may be taken, or until the bucket is full when `amount` exceeds its capacity; 0 when it may be
   * taken now.
   */
  waitMs(amount: number, nowMs: number): number {
    this.grow(nowMs);
    const missing = Math.min(amount, this.capacity) - this.level;
    const waitMs = Math.max(0, this.asOfMs - nowMs);
    // A shortage of at most 1e-9 is only a rounding error and needs no wait.
    return missing <= 1e-9 ? waitMs : waitMs + missing / this.perMs;
  }

  /** Takes `amount` even when less is available. A negative amount is returned to the bucket. */
  take(amount: number, nowMs: number): void {
    this.grow(nowMs);
    this.level = Math.min(this.capacity, this.level - amount);
  }

  /** Empties the bucket and lets it grow only from `untilMs` on. A level below 0 stays as it is. */
  emptyUntil(untilMs: number, nowMs: number): void {
    this.grow(nowMs);
    this.level = Math.min(this.level, 0);
    this.asOfMs = Math.max(this.asOfMs, untilMs);
  }

  private grow(nowMs: number): void {
    if (nowMs <= this.asOfMs) return;
    this.level = Math.min(this.capacity, this.level + (nowMs - this.asOfMs) * this.perMs);
    this.asOfMs = nowMs;
  }
}
