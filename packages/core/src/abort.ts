import { LightAbort } from './light-abort.ts';

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
  if (signal instanceof LightAbort) return signal.onceAborted(callback);
  signal.addEventListener('abort', callback, { once: true });
  return () => signal.removeEventListener('abort', callback);
}

/**
 * Resolves or rejects with the outcome of `promise`, or rejects with the reason of `signal` as soon as the signal aborts. The work that
 * `promise` waits for is not stopped; its later result or rejection is ignored.
 */
export function raceAbort<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const release = onAbort(signal, () => reject(signal.reason));
    const settle =
      <V>(outcome: (value: V) => void): ((value: V) => void) =>
      (value) => {
        release();
        outcome(value);
      };
    promise.then(settle(resolve), settle(reject));
  });
}

/** A signal for one piece of work. It aborts when the owner of the work or one of its parent signals aborts it. */
export type LinkedAbort = {
  readonly signal: AbortSignal;
  /** Aborts the signal with `reason`. The parent signals are not aborted. */
  abort(reason: unknown): void;
  /** Removes the listeners from the parent signals and cancels the deadline, if there is one. It must be called when the work is done. */
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
 * `parents` aborts. The method `release` of the result cancels the deadline and removes the listeners from `parents`.
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

/**
 * Creates a signal that aborts `graceMs` milliseconds on `clock` after `parent` has aborted, with the reason of `parent`. The delay lets
 * short work finish that must not be lost. Calling `release` on the result cancels the pending abort.
 */
export function abortLate(clock: Timers, graceMs: number, parent: AbortSignal): LinkedAbort {
  const linked = linkAbort();
  let cancel = (): void => {};
  const removeListener = onAbort(parent, () => {
    cancel = clock.schedule(graceMs, () => linked.abort(parent.reason));
  });
  return {
    ...linked,
    release: () => {
      removeListener();
      cancel();
    },
  };
}
