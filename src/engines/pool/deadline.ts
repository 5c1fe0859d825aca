import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';

/** Runs `work` with a signal that aborts after `ms`. Rejects with `engine_unavailable` then, even if `work` does not listen. */
export async function withDeadline<T>(
  clock: Clock,
  ms: number,
  what: string,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  let cancel = (): void => {};
  const late = new Promise<never>((_, reject) => {
    cancel = clock.schedule(ms, () => {
      const error = new FloeError('engine_unavailable', `${what} took more than ${ms} ms`);
      controller.abort(error);
      reject(error);
    });
  });
  try {
    return await Promise.race([work(controller.signal), late]);
  } finally {
    cancel();
  }
}
