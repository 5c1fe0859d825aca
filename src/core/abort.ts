import type { Clock } from './clock.ts';

/**
 * Runs `callback` once when `signal` aborts, at once if it already has. Returns a function that removes the listener; call it when
 * the work is done, or the signal keeps the callback in memory for as long as it lives. Without a signal nothing happens.
 */
export function onAbort(signal: AbortSignal | undefined, callback: () => void): () => void {
  if (signal === undefined) return () => {};
  if (signal.aborted) {
    callback();
    return () => {};
  }
  signal.addEventListener('abort', callback, { once: true });
  return () => signal.removeEventListener('abort', callback);
}

/**
 * Settles as `promise` does, or rejects with the signal's reason as soon as it aborts. What the promise waits for is not stopped: its
 * later result is dropped and its later rejection is ignored.
 */
export function raceAbort<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const release = onAbort(signal, () => reject(signal.reason));
    promise.then(resolve, reject).finally(release);
  });
}

/** A signal that one piece of work owns and that its parents can abort as well. */
export type LinkedAbort = {
  readonly signal: AbortSignal;
  /** Aborts the signal with `reason`; the parents are not touched. */
  abort(reason: unknown): void;
  /** Removes the listeners from the parents and cancels the deadline. Call it when the work is done. */
  release(): void;
};

/** A signal of its own that aborts, with the same reason, when one of `parents` aborts. */
export function linkAbort(...parents: readonly (AbortSignal | undefined)[]): LinkedAbort {
  const controller = new AbortController();
  const releases = parents.map((parent) => onAbort(parent, () => controller.abort(parent?.reason)));
  return {
    signal: controller.signal,
    abort: (reason) => controller.abort(reason),
    release: () => {
      for (const release of releases) release();
    },
  };
}

/**
 * A signal that aborts after `limitMs` milliseconds on `clock` with the reason that `reason()` returns, or earlier when one of
 * `parents` aborts. `release` also cancels the deadline.
 */
export function abortAfter(
  clock: Clock,
  limitMs: number,
  reason: () => unknown,
  ...parents: readonly (AbortSignal | undefined)[]
): LinkedAbort {
  const linked = linkAbort(...parents);
  const cancel = clock.schedule(limitMs, () => linked.abort(reason()));
  return {
    ...linked,
    release: () => {
      cancel();
      linked.release();
    },
  };
}
