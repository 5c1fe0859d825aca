import type { Clock } from '../../src/core/clock.ts';
import type { Timeline } from './timeline.ts';

/**
 * One life of a simulated process. What reaches the code that runs in it (timers, answers, requests) comes through `enter`, so that a
 * killed process does nothing more, and a paused one nothing until it goes on. Its code goes on from one `await` to the next only
 * with such an answer, so a process can be killed at every `await` that waits for something outside.
 */
export class SimProcess {
  readonly name: string;
  readonly clock: Clock;
  private readonly timeline: Timeline;
  private dead = false;
  private backlog: (() => void)[] | null = null;
  private readonly mourners = new Set<() => void>();

  /** `rate`: how fast its monotonic clock runs. `wallOffsetMs` is asked each time, so that the wall clock may jump. */
  constructor(name: string, timeline: Timeline, rate = 1, wallOffsetMs: () => number = () => 0) {
    this.name = name;
    this.timeline = timeline;
    const bootMs = timeline.nowMs;
    this.clock = {
      monotonicMs: () => (timeline.nowMs - bootMs) * rate,
      nowMs: () => Math.floor(timeline.clock.nowMs() + wallOffsetMs()),
      schedule: (delayMs, callback) => timeline.after(Math.max(0, delayMs) / rate, () => this.enter(callback)),
    };
  }

  get alive(): boolean {
    return !this.dead;
  }

  get paused(): boolean {
    return this.backlog !== null;
  }

  enter(action: () => void): void {
    if (this.dead) return;
    if (this.backlog === null) action();
    else this.backlog.push(action);
  }

  /** Wraps a call to the outside: its answer comes in through `enter`. */
  outside<T>(call: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      call.then(
        (value) => this.enter(() => resolve(value)),
        (thrown: unknown) => this.enter(() => reject(thrown)),
      );
    });
  }

  kill(): void {
    if (this.dead) return;
    this.dead = true;
    this.backlog = null;
    for (const mourner of [...this.mourners]) mourner();
    this.mourners.clear();
  }

  /** Calls back when the process is killed; returns the end of that. */
  onKill(callback: () => void): () => void {
    this.mourners.add(callback);
    return () => this.mourners.delete(callback);
  }

  pause(): void {
    if (!this.dead) this.backlog ??= [];
  }

  /** What came meanwhile happens now, one thing after the other. */
  resume(): void {
    const { backlog } = this;
    this.backlog = null;
    for (const action of backlog ?? []) this.timeline.after(0, () => this.enter(action));
  }
}
