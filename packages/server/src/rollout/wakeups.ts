import { type Clock, onAbort } from '@floe-rl/core';

/**
 * A kind of change for which a held request may wait. `capacity:<node>` is woken when a node that was full has delivered a result, and
 * `task:<id>` when the task has ended. `batches` is woken when a batch stream may start groups, and `batch:<id>` when it may have a batch.
 */
export type Topic =
  | 'queue'
  | 'results'
  | 'callbacks'
  | 'cancelled'
  | 'engines'
  | 'batches'
  | `batch:${string}`
  | `node:${string}`
  | `task:${string}`
  | `capacity:${string}`;

/**
 * Interval at which a held request checks whether the change that it waits for has happened. Waking alone does not suffice, because the
 * announcement of another server may have been lost.
 */
const POLL_INTERVAL_MS = 1_000;

/** The wait of one request for a topic. */
type Wait = {
  /** Ends the wait, as if one of its topics had been woken. */
  wake(): void;
  /** Resolves to true when a topic is woken, the client disconnects or the server closes, and to false after `ms` milliseconds. */
  atMost(ms: number): Promise<boolean>;
  disarm(): void;
};

/** Wakes held requests when the change that they wait for has happened. */
export class Wakeups {
  private readonly clock: Clock;
  private readonly waiters = new Map<Topic, Set<() => void>>();
  private readonly followers = new Map<Topic, () => void>();
  /** Aborted when the server closes, which wakes every held request once. */
  private readonly closing: AbortSignal;

  constructor(clock: Clock, closing: AbortSignal) {
    this.clock = clock;
    this.closing = closing;
  }

  wake(topic: Topic): void {
    const waiters = this.waiters.get(topic);
    this.waiters.delete(topic);
    for (const waiter of waiters ?? []) waiter();
    this.followers.get(topic)?.();
  }

  /** Calls `listener` each time that the topic is woken. A topic has at most one such listener. */
  follow(topic: Topic, listener: () => void): void {
    this.followers.set(topic, listener);
  }

  /**
   * Calls `check` until it returns a value other than `undefined`: immediately, each time that one of the topics is woken, and once a
   * second. Resolves to that value, or to `undefined` when `waitMs` has passed, when `disconnected` is aborted, or when the server closes.
   */
  async poll<T>(
    topic: Topic | readonly Topic[],
    waitMs: number,
    disconnected: AbortSignal,
    check: () => Promise<T | undefined>,
  ): Promise<T | undefined> {
    const deadlineMs = this.clock.monotonicMs() + waitMs;
    for (;;) {
      // The request is registered before the check, so that a change between the check and the wait is not missed.
      const wait = this.arm(typeof topic === 'string' ? [topic] : topic, disconnected);
      try {
        const value = await check();
        const leftMs = deadlineMs - this.clock.monotonicMs();
        if (value !== undefined || leftMs <= 0 || disconnected.aborted || this.closing.aborted) return value;
        await wait.atMost(Math.min(leftMs, POLL_INTERVAL_MS));
      } finally {
        wait.disarm();
      }
    }
  }

  /**
   * Calls `read` immediately and each time that the topic is woken. Stops when `isNews` holds for the value, `waitMs` has passed,
   * `disconnected` is aborted, or the server closes. Resolves to the latest value. Unlike {@link poll}, this method does not read once a
   * second. It is for requests that every node holds open and repeats: if an announcement is lost, the next request still finds the change.
   */
  async hold<T>(
    topic: Topic,
    waitMs: number,
    disconnected: AbortSignal,
    read: () => Promise<T>,
    isNews: (value: T) => boolean,
  ): Promise<T> {
    const deadlineMs = this.clock.monotonicMs() + waitMs;
    for (;;) {
      const wait = this.arm([topic], disconnected);
      try {
        const value = await read();
        const leftMs = deadlineMs - this.clock.monotonicMs();
        if (isNews(value) || leftMs <= 0 || disconnected.aborted || this.closing.aborted) return value;
        if (!(await wait.atMost(leftMs))) return value;
      } finally {
        wait.disarm();
      }
    }
  }

  /** Registers a request for the topics. The caller calls `disarm` when the wait has ended. */
  arm(topics: readonly Topic[], disconnected: AbortSignal): Wait {
    let end = (_isWoken: boolean): void => {};
    const woken = new Promise<boolean>((resolve) => {
      end = resolve;
    });
    const wake = (): void => end(true);
    for (const topic of topics) this.waiters.set(topic, (this.waiters.get(topic) ?? new Set()).add(wake));
    const releases = [onAbort(disconnected, wake), onAbort(this.closing, wake)];
    let cancelTimer = (): void => {};
    return {
      wake,
      atMost: (ms) => {
        cancelTimer = this.clock.schedule(ms, () => end(false));
        return woken;
      },
      disarm: () => {
        cancelTimer();
        for (const topic of topics) {
          const waiters = this.waiters.get(topic);
          waiters?.delete(wake);
          if (waiters?.size === 0) this.waiters.delete(topic);
        }
        for (const release of releases) release();
      },
    };
  }
}
