/**
 * Runs `callback` once when `signal` aborts, or immediately when it has already aborted; never when `signal` is undefined. Returns a
 * function that removes the listener. Call that function when the work is done, because a signal keeps its listeners in memory for as long
 * as it lives.
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
 * Settles as `promise` does, or rejects with the reason of `signal` as soon as that aborts. The work that `promise` waits for is not
 * stopped; its later result or rejection is ignored.
 */
export function raceAbort<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const release = onAbort(signal, () => reject(signal.reason));
    promise.then(resolve, reject).finally(release);
  });
}

/** A signal for one piece of work, which the work's owner or one of the signal's parents can abort. */
export type LinkedAbort = {
  readonly signal: AbortSignal;
  /** Aborts the signal with `reason`. Does not abort the parents. */
  abort(reason: unknown): void;
  /** Removes the listeners from the parents and cancels the deadline. To be called when the work is done. */
  release(): void;
};

/**
 * Creates a signal that aborts, with the same reason, when one of `parents` aborts. Unlike `AbortSignal.any`, it can remove its listeners
 * from parents that outlive the work.
 */
export function linkAbort(...parents: readonly (AbortSignal | undefined)[]): LinkedAbort {
  const controller = new AbortController();
  const releases: (() => void)[] = [];
  const release = (): void => {
    for (const removeListener of releases.splice(0)) removeListener();
  };
  for (const parent of parents) {
    if (controller.signal.aborted) break;
    const forward = (): void => {
      release();
      controller.abort(parent?.reason);
    };
    releases.push(onAbort(parent, forward));
  }
  return { signal: controller.signal, abort: (reason) => controller.abort(reason), release };
}

/** The method of a `Clock` that sets deadlines. */
type Timers = { schedule(delayMs: number, callback: () => void): () => void };

/**
 * Creates a signal that aborts after `limitMs` milliseconds on `clock`, with the reason that `reason()` returns, or earlier when one of
 * `parents` aborts. `release` also cancels the deadline.
 */
export function abortAfter(
  clock: Timers,
  limitMs: number,
  reason: () => unknown,
  ...parents: readonly (AbortSignal | undefined)[]
): LinkedAbort {
  const linked = linkAbort(...parents);
  const cancelDeadline = clock.schedule(limitMs, () => linked.abort(reason()));
  return {
    ...linked,
    release: () => {
      cancelDeadline();
      linked.release();
    },
  };
}
