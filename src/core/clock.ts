import { performance } from 'node:perf_hooks';

/**
 * Time as an argument. `monotonicMs` is for durations and deadlines and never jumps; `nowMs` is the wall clock and is
 * only ever shown or stored. This file is the only one that may touch timers and `Date`.
 */
export interface Clock {
  /** Milliseconds since an arbitrary start. */
  monotonicMs(): number;
  /** Unix time in milliseconds. */
  nowMs(): number;
  /** Calls `callback` once after `delayMs`; the returned function prevents that. Never keeps the process alive by itself. */
  schedule(delayMs: number, callback: () => void): () => void;
}

/** Node fires timers beyond 2^31-1 ms at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  monotonicMs: () => performance.now(),
  nowMs: () => Date.now(),
  schedule(delayMs, callback) {
    const timer = setTimeout(callback, Math.min(Math.max(delayMs, 0), MAX_TIMER_MS));
    timer.unref();
    return () => clearTimeout(timer);
  },
};

export function isoNow(clock: Clock): string {
  return new Date(clock.nowMs()).toISOString();
}

/**
 * Resolves after `delayMs`, or rejects with the signal's reason as soon as it aborts. By the system's clock, keeps the process alive
 * while waiting.
 */
export function sleep(clock: Clock, delayMs: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    // The clock's timers are unref'd; somebody awaits this one. Another clock has no timers that could end a process.
    const keepAlive = clock === systemClock ? setInterval(() => {}, MAX_TIMER_MS) : undefined;
    const onAbort = (): void => {
      cancel();
      clearInterval(keepAlive);
      reject(signal?.reason);
    };
    const cancel = clock.schedule(delayMs, () => {
      clearInterval(keepAlive);
      signal?.removeEventListener('abort', onAbort);
      resolve();
    });
    signal?.addEventListener('abort', onAbort, { once: true });
  });
}
