import { linkAbort } from '../../core/abort.ts';
import type { Clock } from '../../core/clock.ts';
import type { FloeError } from '../../core/errors.ts';

/** Checks per stall limit: a stalled stage is ended late by at most one twentieth of the limit. */
const CHECKS_PER_LIMIT = 20;

export type StallWatchOptions = {
  readonly clock: Clock;
  /** Longest time without progress; `null` when there is no limit. */
  readonly limitMs: number | null;
  /** Returns a number that increases with every sign of progress. */
  readonly progressCount: () => number;
  /** Returns the error with which the work is aborted. Called when the work is aborted, with the number of seconds without progress. */
  readonly stallError: (seconds: number) => FloeError;
};

/**
 * Runs `work` with a signal that aborts when the work makes no progress for the limit, or when `parent` aborts. Time in which this process
 * was suspended does not count. Settles as `work` does, which must end when the signal aborts.
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
