import type { Clock } from '../core/clock.ts';

/** What a held request may be waiting for. */
export type Topic = 'queue' | 'results' | 'callbacks' | 'cancelled' | 'engines' | `node:${string}` | `room:${string}`;

/** A held request looks again after this long even unasked: a change may come from another server on the same store. */
const LOOK_AGAIN_MS = 1_000;

/** Wakes requests that are being held open. */
export class Wakeups {
  private readonly clock: Clock;
  private readonly waiters = new Map<Topic, Set<() => void>>();
  /** Wakes everything, for good: the server is closing. */
  private readonly closing: AbortSignal;

  constructor(clock: Clock, closing: AbortSignal) {
    this.clock = clock;
    this.closing = closing;
  }

  wake(topic: Topic): void {
    const set = this.waiters.get(topic);
    this.waiters.delete(topic);
    for (const waiter of set ?? []) waiter();
  }

  /**
   * Calls `look` until it finds something, each time that `topic`, or one of several, is woken and once a second. Resolves to undefined when
   * `waitMs` is over, the client is gone or the server is closing.
   */
  async poll<T>(
    topic: Topic | readonly Topic[],
    waitMs: number,
    gone: AbortSignal,
    look: () => Promise<T | undefined>,
  ): Promise<T | undefined> {
    const deadlineMs = this.clock.monotonicMs() + waitMs;
    for (;;) {
      // Waits before it looks, so that no change between the two is missed.
      const woken = this.arm(typeof topic === 'string' ? [topic] : topic, gone);
      try {
        const found = await look();
        const leftMs = deadlineMs - this.clock.monotonicMs();
        if (found !== undefined || leftMs <= 0 || gone.aborted || this.closing.aborted) return found;
        await woken.after(Math.min(leftMs, LOOK_AGAIN_MS));
      } finally {
        woken.disarm();
      }
    }
  }

  private arm(topics: readonly Topic[], gone: AbortSignal): { after(ms: number): Promise<void>; disarm(): void } {
    let wake = (): void => {};
    const woken = new Promise<void>((resolve) => {
      wake = resolve;
    });
    for (const topic of topics) this.waiters.set(topic, (this.waiters.get(topic) ?? new Set()).add(wake));
    gone.addEventListener('abort', wake, { once: true });
    this.closing.addEventListener('abort', wake, { once: true });
    let cancelTimer = (): void => {};
    return {
      after: (ms) => {
        cancelTimer = this.clock.schedule(ms, wake);
        return woken;
      },
      disarm: () => {
        cancelTimer();
        for (const topic of topics) {
          const set = this.waiters.get(topic);
          set?.delete(wake);
          if (set?.size === 0) this.waiters.delete(topic);
        }
        gone.removeEventListener('abort', wake);
        this.closing.removeEventListener('abort', wake);
      },
    };
  }
}
