import type { Clock } from '../../core/clock.ts';
import { TokenBucket } from '../../core/token-bucket.ts';
import type { EngineLimits } from '../../schema/index.ts';

/** A provider that refuses and says "at once" would else be asked in a tight loop. */
const MIN_REFUSAL_MS = 1_000;

/** Share of the latest call in what the next one is expected to come to: some ten calls are remembered. */
const LATEST_SHARE = 0.1;

/**
 * What a provider allows per minute, of one engine. Tokens are known only when a call has ended: until then it is charged what
 * calls came to so far on average.
 */
export class RateLimits {
  private readonly clock: Clock;
  private readonly requests: TokenBucket | null;
  private readonly tokens: TokenBucket | null;
  /** Tokens of a call, prompt and reply; null: none has ended. */
  private expected: number | null = null;

  constructor({ requests_per_minute, tokens_per_minute }: EngineLimits, clock: Clock) {
    const bucket = (perMinute: number | null): TokenBucket | null =>
      perMinute === null ? null : new TokenBucket(perMinute, clock.monotonicMs());
    this.clock = clock;
    this.requests = bucket(requests_per_minute);
    this.tokens = bucket(tokens_per_minute);
  }

  /** Milliseconds until a call may begin; 0: now. */
  waitMs(): number {
    const nowMs = this.clock.monotonicMs();
    const requests = this.requests?.waitMs(1, nowMs) ?? 0;
    return Math.max(requests, this.tokens?.waitMs(Math.max(1, this.expected ?? 1), nowMs) ?? 0);
  }

  /** A call begins. The returned function, to be called once, tells what it came to; 0: it failed. */
  begin(): (tokens: number) => void {
    const charged = this.expected ?? 0;
    const startMs = this.clock.monotonicMs();
    this.requests?.take(1, startMs);
    this.tokens?.take(charged, startMs);
    return (tokens) => {
      this.tokens?.take(tokens - charged, this.clock.monotonicMs());
      if (tokens > 0) this.expected = (this.expected ?? tokens) * (1 - LATEST_SHARE) + tokens * LATEST_SHARE;
    };
  }

  /** The provider has refused a call and wants none for `retryAfterMs`. */
  refused(retryAfterMs: number): void {
    const nowMs = this.clock.monotonicMs();
    const untilMs = nowMs + Math.max(retryAfterMs, MIN_REFUSAL_MS);
    this.requests?.emptyUntil(untilMs, nowMs);
    this.tokens?.emptyUntil(untilMs, nowMs);
  }
}
