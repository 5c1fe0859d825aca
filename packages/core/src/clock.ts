import { performance } from 'node:perf_hooks';
import { onAbort } from './abort.ts';
import { inputHandled } from './event-loop.ts';

/**
 * The source of time, which is passed as an argument. `monotonicMs` never jumps and is for durations and deadlines. `nowMs` is the wall
 * clock, which is only displayed or stored. clock.ts is the only file that may use timers and `Date`.
 */
export interface Clock {
  /** Returns the milliseconds since an arbitrary start. */
  monotonicMs(): number;
  /** Returns the Unix time in milliseconds. */
  nowMs(): number;
  /**
   * Calls `callback` once after `delayMs` milliseconds. Returns a function that cancels the call. A pending call does not keep the process
   * alive.
   */
  schedule(delayMs: number, callback: () => void): () => void;
}

/** Longest delay of a timer in milliseconds. Node.js fires a timer with a longer delay immediately. */
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

/**
 * Calls `callback` like {@link Clock.schedule}, but first handles the input that has arrived by then, which may cancel the call. It is for
 * timers whose callback means that something did not arrive in time: a busy event loop runs late timers before it reads.
 */
export function scheduleAfterInput(clock: Clock, delayMs: number, callback: () => void): () => void {
  let isCancelled = false;
  const cancelTimer = clock.schedule(delayMs, async () => {
    await inputHandled();
    if (!isCancelled) callback();
  });
  return () => {
    isCancelled = true;
    cancelTimer();
  };
}

/** Returns the time of the wall clock in ISO 8601, UTC. */
export function isoNow(clock: Clock): string {
  return new Date(clock.nowMs()).toISOString();
}

/**
 * Resolves after `delayMs` milliseconds, or rejects with the reason of `signal` as soon as the signal aborts. With the system clock, the
 * process stays alive during the wait.
 */
export function sleep(clock: Clock, delayMs: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    // Timers of the system clock do not keep the process alive, so an interval does that during the wait. Other clocks use no timers of
    // Node.js.
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
