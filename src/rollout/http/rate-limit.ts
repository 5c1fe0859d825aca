import type { Clock } from '../../core/clock.ts';

/** Callers remembered at once. One that is forgotten starts with a full bucket. */
const MAX_CALLERS = 10_000;

type Bucket = { tokens: number; atMs: number };

/** A token bucket for each caller: `perSecond` in the long run, `burst` at once. */
export class RateLimit {
  private readonly clock: Clock;
  private readonly perSecond: number;
  private readonly burst: number;
  private readonly buckets = new Map<string, Bucket>();

  constructor(clock: Clock, perSecond: number, burst: number) {
    this.clock = clock;
    this.perSecond = perSecond;
    this.burst = Math.max(1, burst);
  }

  /** Seconds until the caller may call again; 0: it may now, and has. */
  take(caller: string): number {
    const nowMs = this.clock.monotonicMs();
    const bucket = this.buckets.get(caller) ?? { tokens: this.burst, atMs: nowMs };
    const refilled = bucket.tokens + ((nowMs - bucket.atMs) / 1000) * this.perSecond;
    const tokens = Math.min(this.burst, refilled);
    const allowed = tokens >= 1;
    // The callers seen longest ago are the first of the map.
    this.buckets.delete(caller);
    this.buckets.set(caller, { tokens: allowed ? tokens - 1 : tokens, atMs: nowMs });
    if (this.buckets.size > MAX_CALLERS) this.forgetOldest();
    return allowed ? 0 : (1 - tokens) / this.perSecond;
  }

  private forgetOldest(): void {
    for (const oldest of this.buckets.keys()) {
      this.buckets.delete(oldest);
      return;
    }
  }
}
