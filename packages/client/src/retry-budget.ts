import { type Clock, FloeError, jitteredBackoffMs, linkAbort, type RandomSource, sleep } from '@floe-rl/core';

/** The pauses between two tries of a call. The longest pause is short, so that a restarted server is called within seconds. */
const BACKOFF = { baseMs: 100, maxMs: 5_000 } as const;

/**
 * Decides whether and when a failed call is retried. Calls are retried with growing, randomly varied pauses, until they have failed for
 * `limitMs` milliseconds without a success in between.
 */
export class RetryBudget {
  private readonly clock: Clock;
  private readonly limitMs: number;
  private readonly closed: AbortSignal;
  private readonly random: RandomSource;
  private readonly onRetry: ((failure: FloeError) => void) | undefined;
  private failures = 0;
  private failingSinceMs: number | null = null;

  /**
   * Creates a budget of `limitMs` milliseconds. Once `closed` has aborted, no call is retried. `onRetry` is called before each pause, with
   * the failure.
   */
  constructor(
    clock: Clock,
    limitMs: number,
    closed: AbortSignal,
    random: RandomSource,
    onRetry?: (failure: FloeError) => void,
  ) {
    this.clock = clock;
    this.limitMs = limitMs;
    this.closed = closed;
    this.random = random;
    this.onRetry = onRetry;
  }

  /** Records a successful call: after the next failure, the full limit and the shortest pause apply. */
  reset(): void {
    this.failures = 0;
    this.failingSinceMs = null;
  }

  /** Resolves when the failed call should be retried. Rethrows `thrown` when a retry cannot succeed or the time limit has passed. */
  async waitAfter(thrown: unknown, signal?: AbortSignal): Promise<void> {
    if (signal?.aborted || this.closed.aborted || !isTransient(thrown)) throw thrown;
    const nowMs = this.clock.monotonicMs();
    this.failingSinceMs ??= nowMs;
    const leftMs = this.failingSinceMs + this.limitMs - nowMs;
    if (leftMs <= 0) throw thrown;
    this.onRetry?.(thrown);
    const pauseMs = jitteredBackoffMs(BACKOFF, ++this.failures, this.random);
    const stop = linkAbort(signal, this.closed);
    try {
      // The last retry is sent when the time limit is reached. Its pause is not shortened at random, because time for further retries would be
      // left.
      await sleep(this.clock, Math.min(pauseMs, leftMs), stop.signal);
    } finally {
      stop.release();
    }
  }
}

/**
 * Whether a retry of the call may succeed. `internal` is excluded although it is marked as retryable: it reports a defect of the server,
 * which a repeated call would very likely trigger too.
 */
function isTransient(thrown: unknown): thrown is FloeError {
  return FloeError.is(thrown) && thrown.retryable && thrown.code !== 'internal';
}
