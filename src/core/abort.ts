/**
 * Runs `callback` once when `signal` aborts, or immediately when it has already aborted. Returns a function that removes the
 * listener: call it when the work is done, because a signal keeps its listeners in memory for as long as it lives. Without a signal
 * nothing happens.
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
 * Settles as `promise` does, or rejects with the signal's reason as soon as it aborts. The work that `promise` waits for is not
 * stopped; its later result or rejection is ignored.
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
  /** Aborts the signal with `reason`; the parents are not affected. */
  abort(reason: unknown): void;
  /** Removes the listeners from the parents and cancels the deadline. Call it when the work is done. */
  release(): void;
};

/**
 * Creates a signal that aborts, with the same reason, when one of `parents` aborts. Unlike `AbortSignal.any` it removes its
 * listeners from parents that outlive the work.
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

/** The part of a `Clock` that sets deadlines. */
type Timers = { schedule(delayMs: number, callback: () => void): () => void };

/**
 * Creates a signal that aborts with the reason that `reason()` returns once `limitMs` milliseconds have passed on `clock`, or earlier
 * when one of `parents` aborts. `release` also cancels the deadline.
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
