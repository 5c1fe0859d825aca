import type { Clock } from './clock.ts';

type Timer = { readonly dueMs: number; readonly order: number; callback: (() => void) | null };

/**
 * Cancelled timers stay in the heap until they are due. They are all removed early once there are more than 64 of them and they outnumber
 * the live timers.
 */
const MAX_CANCELLED = 64;

/**
 * A clock for tests and simulations. Time passes only when `advance` or `fireNext` is called, and timers fire in order of their due time.
 */
export class VirtualClock implements Clock {
  private currentMs: number;
  /** The timers as a binary heap: the parent of timer `i` is at `(i - 1) >> 1` and is due no later than timer `i`. */
  private timers: Timer[] = [];
  private cancelled = 0;
  private nextOrder = 0;
  private readonly epochMs: number;

  constructor(epochMs = Date.UTC(2026, 0, 1)) {
    this.epochMs = epochMs;
    this.currentMs = 0;
  }

  monotonicMs(): number {
    return this.currentMs;
  }

  nowMs(): number {
    return this.epochMs + this.currentMs;
  }

  schedule(delayMs: number, callback: () => void): () => void {
    const timer: Timer = { dueMs: this.currentMs + Math.max(delayMs, 0), order: this.nextOrder++, callback };
    this.timers.push(timer);
    this.siftUp(this.timers.length - 1);
    return () => {
      if (timer.callback === null) return;
      timer.callback = null;
      this.cancelled++;
      if (this.cancelled > MAX_CANCELLED && this.cancelled > this.timers.length / 2) this.forgetCancelled();
    };
  }

  /** Moves time forward by `byMs` milliseconds. Fires the timers that become due, each when the clock shows its due time. */
  advance(byMs: number): void {
    const targetMs = this.currentMs + byMs;
    while (this.fireNext(targetMs));
    this.currentMs = targetMs;
  }

  /**
   * Moves time to the next timer that is due at `untilMs` or earlier, and fires it. Returns false, without moving time, when there is no
   * such timer.
   */
  fireNext(untilMs = Number.POSITIVE_INFINITY): boolean {
    for (let next = this.timers[0]; next !== undefined && next.dueMs <= untilMs; next = this.timers[0]) {
      this.removeFirst();
      const { callback } = next;
      if (callback === null) {
        this.cancelled--;
        continue;
      }
      next.callback = null;
      this.currentMs = next.dueMs;
      callback();
      return true;
    }
    return false;
  }

  private removeFirst(): void {
    const last = this.timers.pop();
    if (last === undefined || this.timers.length === 0) return;
    this.timers[0] = last;
    this.siftDown(0);
  }

  private forgetCancelled(): void {
    // An array sorted by due time is a valid heap.
    this.timers = this.timers.filter((timer) => timer.callback !== null).sort((a, b) => (before(a, b) ? -1 : 1));
    this.cancelled = 0;
  }

  private siftUp(from: number): void {
    const { timers } = this;
    const timer = timers[from] as Timer;
    let at = from;
    while (at > 0) {
      const parentAt = (at - 1) >> 1;
      const parent = timers[parentAt] as Timer;
      if (!before(timer, parent)) break;
      timers[at] = parent;
      at = parentAt;
    }
    timers[at] = timer;
  }

  private siftDown(from: number): void {
    const { timers } = this;
    const timer = timers[from] as Timer;
    let at = from;
    for (;;) {
      let childAt = 2 * at + 1;
      const [left, right] = [timers[childAt], timers[childAt + 1]];
      if (left === undefined) break;
      let child = left;
      if (right !== undefined && before(right, left)) {
        child = right;
        childAt++;
      }
      if (!before(child, timer)) break;
      timers[at] = child;
      at = childAt;
    }
    timers[at] = timer;
  }
}

function before(a: Timer, b: Timer): boolean {
  return a.dueMs < b.dueMs || (a.dueMs === b.dueMs && a.order < b.order);
}
