import { type Clock, type FloeError, linkAbort } from '@floe-rl/core';

/** Number of checks per stall limit. A stalled stage is therefore ended at most one twentieth of the limit too late. */
const CHECKS_PER_LIMIT = 20;

export type StallWatchOptions = {
  readonly clock: Clock;
  /** Maximum time without progress; `null` when there is no limit. */
  readonly limitMs: number | null;
  /** Returns a number that increases with every sign of progress. */
  readonly progressCount: () => number;
  /** Returns the error that the signal of stalled work aborts with. It is called once, with the number of seconds without progress. */
  readonly stallError: (seconds: number) => FloeError;
};

/**
 * Runs `work` with a signal that aborts when `parent` aborts, or when the work makes no progress for `limitMs`. Time in which this process
 * was suspended does not count. `work` must end when the signal aborts, and the promise settles as `work` does.
 */
export async function withStallWatch<T>(
  { clock, limitMs, progressCount, stallError }: StallWatchOptions,
  parent: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  if (limitMs === null) return work(parent);
  const linked = linkAbort(parent);
  const intervalMs = limitMs / CHECKS_PER_LIMIT;
  let lastCount = progressCount();
  let idleMs = 0;
  let checkedMs = clock.monotonicMs();
  let cancel = (): void => {};
  const check = (): void => {
    const nowMs = clock.monotonicMs();
    idleMs += Math.min(nowMs - checkedMs, 2 * intervalMs);
    checkedMs = nowMs;
    if (progressCount() !== lastCount) {
      lastCount = progressCount();
      idleMs = 0;
    }
    if (idleMs >= limitMs) linked.abort(stallError(Math.round(idleMs / 1000)));
    else cancel = clock.schedule(intervalMs, check);
  };
  cancel = clock.schedule(intervalMs, check);
  try {
    return await work(linked.signal);
  } finally {
    cancel();
    linked.release();
  }
}
