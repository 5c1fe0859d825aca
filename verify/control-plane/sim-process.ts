import type { Clock } from '@floe-rl/core';
import type { Timeline } from './timeline.ts';

/**
 * A simulated process, from its start to its end. Timers, replies and requests reach the code of the process only through `execute`. A
 * killed process executes nothing more, and a paused process executes nothing until it is resumed. The simulation can therefore kill a
 * process at every `await` for a timer, a reply or a request.
 */
export class SimProcess {
  readonly name: string;
  readonly clock: Clock;
  private readonly timeline: Timeline;
  private isDead = false;
  /** Actions that arrived while the process was paused, in order of arrival; `null` while the process is not paused. */
  private backlog: (() => void)[] | null = null;
  private readonly killListeners = new Set<() => void>();

  /**
   * `rate` is the speed of the process's monotonic clock relative to virtual time; 1 means the same speed. `wallOffsetMs` returns the
   * offset of the wall clock from virtual time in ms. It is called at each read of the wall clock, so the wall clock can jump.
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

  /** Runs `action` in the process: immediately, or after the resumption of a paused process, or never when the process is dead. */
  execute(action: () => void): void {
    if (this.isDead) return;
    if (this.backlog === null) action();
    else this.backlog.push(action);
  }

  /** Wraps a call to another component, such as the database, so that its result reaches the code of this process through `execute`. */
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

  /** Resumes the process when it is paused, and then runs the actions that arrived during the pause, in order of arrival. */
  resume(): void {
    const { backlog } = this;
    this.backlog = null;
    for (const action of backlog ?? []) this.timeline.after(0, () => this.execute(action));
  }
}
