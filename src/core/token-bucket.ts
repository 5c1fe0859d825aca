const MINUTE_MS = 60_000;

/** How much is saved up while nobody asks: a second's worth, so that no minute sees more than a sixtieth above the limit. */
const SAVED_MS = 1_000;

/**
 * An allowance per minute that grows evenly. Times are milliseconds of one monotonic clock, given with every call and never
 * going back. What is taken may be more than there is: the debt is waited for by those who come next.
 */
export class TokenBucket {
  private readonly perMs: number;
  private readonly capacity: number;
  private level: number;
  private asOfMs: number;

  /** Throws RangeError unless `perMinute` is at least 1. */
  constructor(perMinute: number, nowMs: number) {
    if (!(perMinute >= 1)) throw new RangeError(`an allowance must be at least 1 a minute, not ${perMinute}`);
    this.perMs = perMinute / MINUTE_MS;
    this.capacity = Math.max(1, this.perMs * SAVED_MS);
    this.level = this.capacity;
    this.asOfMs = nowMs;
  }

  /** Milliseconds until `amount` may be taken, or as much of it as can be saved up; 0: now. */
  waitMs(amount: number, nowMs: number): number {
    this.grow(nowMs);
    const missing = Math.min(amount, this.capacity) - this.level;
    const waitMs = Math.max(0, this.asOfMs - nowMs);
    // What rounding leaves open is not worth a wait of its own.
    return missing <= 1e-9 ? waitMs : waitMs + missing / this.perMs;
  }

  /** Takes `amount` whatever there is; a negative one gives back. */
  take(amount: number, nowMs: number): void {
    this.grow(nowMs);
    this.level = Math.min(this.capacity, this.level - amount);
  }

  /** Empty until `untilMs`, and growing from then on. A debt stays. */
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
