import type { Clock } from './clock.ts';

/** A clock that moves only when told to; timers fire in order of their due time. For tests and simulation. */
export class VirtualClock implements Clock {
  private currentMs: number;
  private timers: { dueMs: number; order: number; callback: () => void }[] = [];
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
    const timer = { dueMs: this.currentMs + Math.max(delayMs, 0), order: this.nextOrder++, callback };
    this.timers.push(timer);
    return () => {
      this.timers = this.timers.filter((other) => other !== timer);
    };
  }

  /** Moves time forward, firing what falls due on the way. */
  advance(byMs: number): void {
    const targetMs = this.currentMs + byMs;
    for (;;) {
      const due = this.timers.filter((timer) => timer.dueMs <= targetMs);
      due.sort((a, b) => a.dueMs - b.dueMs || a.order - b.order);
      const next = due[0];
      if (next === undefined) break;
      this.timers = this.timers.filter((timer) => timer !== next);
      this.currentMs = next.dueMs;
      next.callback();
    }
    this.currentMs = targetMs;
  }
}
