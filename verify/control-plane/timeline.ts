import { VirtualClock } from '@floe-rl/core';

/** An invariant of floe that a simulation found violated, with a description of what happened. */
export type Violation = { readonly invariant: string; readonly message: string };

/** The virtual clock of one simulated cluster, its log of events, and its first violation. */
export class Timeline {
  readonly clock = new VirtualClock();
  readonly events: string[] = [];
  private firstViolation: Violation | null = null;
  private readonly maxEvents: number;

  /** The log keeps at least the last `maxEvents` events. Default: all. */
  constructor(maxEvents = Number.POSITIVE_INFINITY) {
    this.maxEvents = maxEvents;
  }

  get nowMs(): number {
    return this.clock.monotonicMs();
  }

  get violation(): Violation | null {
    return this.firstViolation;
  }

  /** Runs `action` after a delay in virtual time. The returned function cancels the action. */
  after(delayMs: number, action: () => void): () => void {
    return this.clock.schedule(delayMs, action);
  }

  /** Resolves after a delay of `delayMs` in virtual time. */
  pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.clock.schedule(delayMs, resolve);
    });
  }

  /** Adds an event to the log. `source` names the process or component in which the event happened. */
  record(source: string, text: string): void {
    this.events.push(`${this.nowMs.toFixed(1).padStart(9)}  ${source.padEnd(10)} ${text}`);
    if (this.events.length > 2 * this.maxEvents) this.events.splice(0, this.maxEvents);
  }

  /** Records the first violation of the simulation. Later violations are ignored, because they are often consequences of the first. */
  reportViolation(invariant: string, message: string): void {
    if (this.firstViolation !== null) return;
    this.firstViolation = { invariant, message };
    this.record('CHECK', `${invariant}: ${message}`);
  }

  /**
   * Advances the virtual clock to the next timer and runs it, until `isDone` returns true, a violation is reported, or no timer is due by
   * `untilMs`.
   */
  run(isDone: () => boolean, untilMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const step = (): void => {
        try {
          if (this.firstViolation !== null || isDone() || !this.clock.fireNext(untilMs)) resolve();
          else Promise.resolve().then(scheduleStep);
        } catch (thrown) {
          reject(thrown);
        }
      };
      // Node runs `process.nextTick` callbacks only when no promise callback is pending. All promise callbacks that a timer caused have
      // therefore run before the next timer fires.
      const scheduleStep = (): void => process.nextTick(step);
      step();
    });
  }
}
