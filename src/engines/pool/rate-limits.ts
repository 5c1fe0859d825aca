import type { Clock } from '../../core/clock.ts';
import { TokenBucket } from '../../core/token-bucket.ts';
import type { EngineLimits } from '../../schema/index.ts';

/**
 * Shortest time without calls after the provider has refused one, so that a provider that refuses with `retry-after: 0` is not called in
 * a tight loop.
 */
const MIN_REFUSAL_MS = 1_000;

/** Weight of the latest call in the moving average of tokens per call. With this weight the average covers about ten calls. */
const LATEST_WEIGHT = 0.1;

/**
 * Enforces the requests and tokens per minute that a provider allows on one engine. A call's tokens are known only when it has ended;
 * until then the average of earlier calls is charged.
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
   * Charges a call that begins. The caller calls the returned function once, when the call has ended, with the tokens that it used (0
   * when it failed), which corrects the charge.
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
