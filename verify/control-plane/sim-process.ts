import type { Clock } from '../../src/core/clock.ts';
import type { Timeline } from './timeline.ts';

/**
 * One run of a simulated process, from start to end. Timers, replies and requests reach its code only through `execute`: a killed process
 * executes nothing more, and a paused process executes nothing until it is resumed. Its code continues after an `await` only on such an
 * input, so the simulation can kill it at every `await` that waits for something outside of it.
 */
export class SimProcess {
  readonly name: string;
  readonly clock: Clock;
  private readonly timeline: Timeline;
  private isDead = false;
  /** Actions that arrived while the process is paused, in order; `null` while it is not paused. */
  private backlog: (() => void)[] | null = null;
  private readonly killListeners = new Set<() => void>();

  /**
   * `rate` is the speed of the monotonic clock relative to true time; 1 is exact. `wallOffsetMs` returns the offset of the wall clock from
   * true time, ms. It is called at each read of the wall clock, which may therefore jump.
   */
  constructor(name: string, timeline: Timeline, rate = 1, wallOffsetMs: () => number = () => 0) {
    this.name = name;
    this.timeline = timeline;
    const bootMs = timeline.nowMs;
    this.clock = {
      monotonicMs: () => (timeline.nowMs - bootMs) * rate,
      nowMs: () => Math.floor(timeline.clock.nowMs() + wallOffsetMs()),
      schedule: (delayMs, callback) => timeline.after(Math.max(0, delayMs) / rate, () => this.execute(callback)),
    };
  }

  get alive(): boolean {
    return !this.isDead;
  }

  get paused(): boolean {
    return this.backlog !== null;
  }

  /** Runs `action` in the process: immediately, or after the process is resumed when it is paused, or never when it is dead. */
  execute(action: () => void): void {
    if (this.isDead) return;
    if (this.backlog === null) action();
    else this.backlog.push(action);
  }

  /** Wraps a call to something outside of the process, so that the result reaches its code through `execute`. */
  receive<T>(call: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      call.then(
        (value) => this.execute(() => resolve(value)),
        (thrown: unknown) => this.execute(() => reject(thrown)),
      );
    });
  }

  kill(): void {
    if (this.isDead) return;
    this.isDead = true;
    this.backlog = null;
    for (const listener of [...this.killListeners]) listener();
    this.killListeners.clear();
  }

  /** Calls `callback` when the process is killed. The returned function removes the callback. */
  onKill(callback: () => void): () => void {
    this.killListeners.add(callback);
    return () => this.killListeners.delete(callback);
  }

  pause(): void {
    if (!this.isDead) this.backlog ??= [];
  }

  /** Resumes the paused process, and runs the actions that arrived during the pause one after the other. */
  resume(): void {
    const { backlog } = this;
    this.backlog = null;
    for (const action of backlog ?? []) this.timeline.after(0, () => this.execute(action));
  }
}
