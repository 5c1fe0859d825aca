import type { Clock } from '@floe-rl/core';
import type { EngineLimits } from '@floe-rl/core/schema';
import { TokenBucket } from '../token-bucket.ts';

/**
 * Minimum time for which no call is sent after the provider has refused a call because of its rate limit. It keeps a provider that refuses
 * with `retry-after: 0` from being called in a tight loop.
 */
const MIN_REFUSAL_MS = 1_000;

/** Weight of the latest call in the moving average of tokens per call. With this weight the average covers about ten calls. */
const LATEST_WEIGHT = 0.1;

/**
 * Enforces the requests and tokens per minute that a provider allows on one engine. The number of tokens of a call is known only when the
 * call has ended; until then the average of earlier calls is charged.
 */
export class RateLimits {
  private readonly clock: Clock;
  private readonly requests: TokenBucket | null;
  private readonly tokens: TokenBucket | null;
  /** Average number of prompt and reply tokens of a call; `null` before the first call has ended. */
  private averageTokens: number | null = null;

  constructor({ requests_per_minute, tokens_per_minute }: EngineLimits, clock: Clock) {
    const bucket = (perMinute: number | null): TokenBucket | null =>
      perMinute === null ? null : new TokenBucket(perMinute, clock.monotonicMs());
    this.clock = clock;
    this.requests = bucket(requests_per_minute);
    this.tokens = bucket(tokens_per_minute);
  }

  /** Returns the milliseconds until a call may begin; 0 when it may begin now. */
  waitMs(): number {
    const nowMs = this.clock.monotonicMs();
    const requests = this.requests?.waitMs(1, nowMs) ?? 0;
    return Math.max(requests, this.tokens?.waitMs(Math.max(1, this.averageTokens ?? 1), nowMs) ?? 0);
  }

  /**
   * Charges the rate limits for a call at its start, with an estimate of its tokens. When the call has ended, the caller calls the returned
   * function once with the number of tokens that the call really used (0 when it failed), which corrects the charge.
   */
  begin(): (tokens: number) => void {
    const charged = this.averageTokens ?? 0;
    const startMs = this.clock.monotonicMs();
    this.requests?.take(1, startMs);
    this.tokens?.take(charged, startMs);
    return (tokens) => {
      this.tokens?.take(tokens - charged, this.clock.monotonicMs());
      if (tokens === 0) return;
      this.averageTokens = (this.averageTokens ?? tokens) * (1 - LATEST_WEIGHT) + tokens * LATEST_WEIGHT;
    };
  }

  /** Records that the provider refused a call and accepts none for `retryAfterMs`. */
  refused(retryAfterMs: number): void {
    const nowMs = this.clock.monotonicMs();
    const untilMs = nowMs + Math.max(retryAfterMs, MIN_REFUSAL_MS);
    this.requests?.emptyUntil(untilMs, nowMs);
    this.tokens?.emptyUntil(untilMs, nowMs);
  }
}
