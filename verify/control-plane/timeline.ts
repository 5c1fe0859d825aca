import { VirtualClock } from '../../src/core/virtual-clock.ts';

/** A promise of the product that was broken. */
export type Violation = { readonly invariant: string; readonly message: string };

/** The virtual time of one simulated cluster, its log of events, and the first violation. */
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

  /** Runs `action` after a delay; the returned function cancels it. */
  after(delayMs: number, action: () => void): () => void {
    return this.clock.schedule(delayMs, action);
  }

  /** Resolves after a delay. */
  pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.clock.schedule(delayMs, resolve);
    });
  }

  /** Adds an event of a process or another part of the cluster, `source`, to the log. */
  record(source: string, text: string): void {
    this.events.push(`${this.nowMs.toFixed(1).padStart(9)}  ${source.padEnd(10)} ${text}`);
  }

  /** Records a violation. Only the first one is kept: later ones are often its consequences. */
  reportViolation(invariant: string, message: string): void {
    if (this.firstViolation !== null) return;
    this.firstViolation = { invariant, message };
    this.record('CHECK', `${invariant}: ${message}`);
  }

  /** Fires timer after timer until `isDone` returns true, a violation is reported, or no timer is due by `untilMs`. */
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
      // A tick runs once no promise callback is pending, so all consequences of a timer are over before the next one fires.
      const scheduleStep = (): void => process.nextTick(step);
      step();
    });
  }
}
