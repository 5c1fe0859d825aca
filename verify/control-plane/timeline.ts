import { VirtualClock } from '../../src/core/virtual-clock.ts';

/** An invariant of floe that a simulation violated. */
export type Violation = { readonly invariant: string; readonly message: string };

/** The virtual clock of one simulated cluster, its log of events, and its first violation. */
export class Timeline {
  readonly clock = new VirtualClock();
  readonly events: string[] = [];
  private firstViolation: Violation | null = null;

  get nowMs(): number {
    return this.clock.monotonicMs();
  }

  get violation(): Violation | null {
    return this.firstViolation;
  }

  /** Runs `action` after a delay in virtual time. The returned function cancels it. */
  after(delayMs: number, action: () => void): () => void {
    return this.clock.schedule(delayMs, action);
  }

  /** Resolves after a delay in virtual time. */
  pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.clock.schedule(delayMs, resolve);
    });
  }

  /** Adds an event to the log. `source` names the process or other part of the cluster in which it happened. */
  record(source: string, text: string): void {
    this.events.push(`${this.nowMs.toFixed(1).padStart(9)}  ${source.padEnd(10)} ${text}`);
  }

  /** Records the first violation and ignores later ones, which are often its consequences. */
  reportViolation(invariant: string, message: string): void {
    if (this.firstViolation !== null) return;
    this.firstViolation = { invariant, message };
    this.record('CHECK', `${invariant}: ${message}`);
  }

  /**
   * Advances the virtual clock from timer to timer until `isDone` returns true, a violation is reported, or no timer is due by `untilMs`.
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
      // Node runs a tick only when no promise callback is pending. All consequences of a timer are therefore over before the next timer
      // fires.
      const scheduleStep = (): void => process.nextTick(step);
      step();
    });
  }
}
