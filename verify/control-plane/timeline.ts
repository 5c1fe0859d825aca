import { VirtualClock } from '../../src/core/virtual-clock.ts';

/** A promise of the product that does not hold. */
export type Violation = { readonly invariant: string; readonly message: string };

/** Virtual time of one world, what happened in it, and the first promise that was broken. */
export class Timeline {
  readonly clock = new VirtualClock();
  readonly events: string[] = [];
  private broken: Violation | null = null;

  get nowMs(): number {
    return this.clock.monotonicMs();
  }

  get violation(): Violation | null {
    return this.broken;
  }

  after(delayMs: number, action: () => void): () => void {
    return this.clock.schedule(delayMs, action);
  }

  pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.clock.schedule(delayMs, resolve);
    });
  }

  note(who: string, what: string): void {
    this.events.push(`${this.nowMs.toFixed(1).padStart(9)}  ${who.padEnd(10)} ${what}`);
  }

  /** The first violation is kept: what follows it is often its consequence. */
  violate(invariant: string, message: string): void {
    if (this.broken !== null) return;
    this.broken = { invariant, message };
    this.note('CHECK', `${invariant}: ${message}`);
  }

  /** Goes from event to event until `done`, until a promise is broken, or until nothing more happens by `untilMs`. */
  run(done: () => boolean, untilMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const step = (): void => {
        try {
          if (this.broken !== null || done() || !this.clock.fireNext(untilMs)) resolve();
          else Promise.resolve().then(afterwards);
        } catch (thrown) {
          reject(thrown);
        }
      };
      // A tick runs when no promise is left to be settled: an event is over, whatever it led to, before the next begins.
      const afterwards = (): void => process.nextTick(step);
      step();
    });
  }
}
