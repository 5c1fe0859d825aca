import { performance } from 'node:perf_hooks';
import { onAbort } from './abort.ts';

/**
 * The source of time, passed as an argument. `monotonicMs` is for durations and deadlines and never jumps; `nowMs` is the wall clock,
 * which is only displayed or stored. This file is the only one that may use timers and `Date`.
 */
export interface Clock {
  /** Milliseconds since an arbitrary start. */
  monotonicMs(): number;
  /** Unix time in milliseconds. */
  nowMs(): number;
  /** Calls `callback` once after `delayMs`. Returns a function that cancels the call. Does not keep the process alive. */
  schedule(delayMs: number, callback: () => void): () => void;
}

/** The longest delay of a timer; Node fires timers with a longer one immediately. */
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

/** The wall clock's time in ISO 8601, UTC. */
export function isoNow(clock: Clock): string {
  return new Date(clock.nowMs()).toISOString();
}

/**
 * Resolves after `delayMs`, or rejects with the signal's reason as soon as it aborts. On the system's clock it keeps the process
 * alive while it waits.
 */
export function sleep(clock: Clock, delayMs: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    // The system clock's timers are unref'd, but this one is awaited. Other clocks do not depend on the process's timers.
    const keepAlive = clock === systemClock ? setInterval(() => {}, MAX_TIMER_MS) : undefined;
    const release = onAbort(signal, () => {
      cancel();
      clearInterval(keepAlive);
      reject(signal?.reason);
    });
    const cancel = clock.schedule(delayMs, () => {
      clearInterval(keepAlive);
      release();
      resolve();
    });
  });
}
