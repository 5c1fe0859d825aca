import { linkAbort } from '../../core/abort.ts';
import type { Clock } from '../../core/clock.ts';
import type { FloeError } from '../../core/errors.ts';

/** Checks per limit, so that a stalled stage ends at most one part in twenty of the limit late. */
const CHECKS_PER_LIMIT = 20;

export type StallWatchOptions = {
  readonly clock: Clock;
  /** Longest time without progress; `null` for no limit. */
  readonly limitMs: number | null;
  /** Returns a number that grows with every sign of progress. */
  readonly progressCount: () => number;
  /** Returns the reason with which the work is aborted. Called at that moment, with the seconds without progress. */
  readonly stallError: (seconds: number) => FloeError;
};

/**
 * Runs `work` with a signal that aborts when there is no progress for the limit, or with the reason of `parent`. Time in which this
 * process was suspended does not count. Rejects as `work` does, which must end when the signal aborts.
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
