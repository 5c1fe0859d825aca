import type { Clock } from '../../src/core/clock.ts';
import type { Timeline } from './timeline.ts';

/**
 * A simulated process, from its start to its end. Timers, replies and requests reach the code that runs in it only through `execute`,
 * so a killed process does nothing more and a paused one does nothing until it is resumed. Its code passes an `await` only after such
 * an input, so a process can be killed at every `await` that waits for something outside of it.
 */
export class SimProcess {
  readonly name: string;
  readonly clock: Clock;
  private readonly timeline: Timeline;
  private isDead = false;
  /** Inputs that arrived while the process was paused; `null` while it is not paused. */
  private backlog: (() => void)[] | null = null;
  private readonly killListeners = new Set<() => void>();

  /**
   * @param rate Speed of the monotonic clock relative to true time.
   * @param wallOffsetMs Offset of the wall clock, read each time so that the wall clock may jump.
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

  /** Runs `action` in the process: immediately, after it is resumed, or never when it is dead. */
  execute(action: () => void): void {
    if (this.isDead) return;
    if (this.backlog === null) action();
    else this.backlog.push(action);
  }

  /** Wraps a call to something outside of the process, so that its result enters through `execute`. */
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

  /** Calls `callback` when the process is killed; the returned function removes it. */
  onKill(callback: () => void): () => void {
    this.killListeners.add(callback);
    return () => this.killListeners.delete(callback);
  }

  pause(): void {
    if (!this.isDead) this.backlog ??= [];
  }

  /** Ends a pause. The inputs that arrived meanwhile run one after the other. */
  resume(): void {
    const { backlog } = this;
    this.backlog = null;
    for (const action of backlog ?? []) this.timeline.after(0, () => this.execute(action));
  }
}
