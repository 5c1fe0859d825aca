import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';

/** What `work` came to, or that its time ran out. */
export type Timed<T> = { readonly timedOut: false; readonly value: T } | { readonly timedOut: true };

/**
 * Runs `work` with a signal that aborts after `limitMs` or with `parent`. Running out of this time is a value, since
 * whose fault it is depends on what ran; everything else that `work` rejects with goes through.
 */
export async function withinTime<T>(
  clock: Clock,
  limitMs: number,
  parent: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<Timed<T>> {
  const controller = new AbortController();
  const reason = new FloeError('deadline_exceeded', `a command of the evaluator ran longer than ${limitMs} ms`);
  const forward = (): void => controller.abort(parent.reason);
  if (parent.aborted) forward();
  parent.addEventListener('abort', forward, { once: true });
  const cancel = clock.schedule(limitMs, () => controller.abort(reason));
  try {
    return { timedOut: false, value: await work(controller.signal) };
  } catch (thrown) {
    if (thrown === reason) return { timedOut: true };
    throw thrown;
  } finally {
    cancel();
    parent.removeEventListener('abort', forward);
  }
}
