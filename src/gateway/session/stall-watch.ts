import type { Clock } from '../../core/clock.ts';
import type { FloeError } from '../../core/errors.ts';

/** Looks at a stage this often within its limit, so that one is ended at most this part of it late. */
const LOOKS_PER_LIMIT = 20;

export type StallWatchOptions = {
  readonly clock: Clock;
  /** null: for ever. */
  readonly limitMs: number | null;
  /** Grows with every sign of progress. */
  readonly signs: () => number;
  /** Why it is ended; called at the moment when it is. */
  readonly stalled: (seconds: number) => FloeError;
};

/**
 * Runs `work` with a signal that aborts when there is no sign of progress for the limit, or with the reason of `parent`.
 * Time in which this very process stood still does not count. Rejects as `work` does; it is `work` that must heed the signal.
 */
export async function withStallWatch<T>(
  { clock, limitMs, signs, stalled }: StallWatchOptions,
  parent: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  if (limitMs === null) return work(parent);
  const controller = new AbortController();
  const forward = (): void => controller.abort(parent.reason);
  if (parent.aborted) forward();
  parent.addEventListener('abort', forward, { once: true });
  const stepMs = limitMs / LOOKS_PER_LIMIT;
  let seen = signs();
  let idleMs = 0;
  let lookedMs = clock.monotonicMs();
  let cancel = (): void => {};
  const look = (): void => {
    const nowMs = clock.monotonicMs();
    idleMs += Math.min(nowMs - lookedMs, 2 * stepMs);
    lookedMs = nowMs;
    if (signs() !== seen) {
      seen = signs();
      idleMs = 0;
    }
    if (idleMs >= limitMs) controller.abort(stalled(Math.round(idleMs / 1000)));
    else cancel = clock.schedule(stepMs, look);
  };
  cancel = clock.schedule(stepMs, look);
  try {
    return await work(controller.signal);
  } finally {
    cancel();
    parent.removeEventListener('abort', forward);
  }
}
