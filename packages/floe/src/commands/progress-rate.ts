/** Time over which a rate is measured, in milliseconds. */
const WINDOW_MS = 60_000;
/** Least time between two values that are kept, so that at most 120 are. */
const STEP_MS = WINDOW_MS / 120;

/** The growth in the last minute of a number that never falls. */
export class ProgressRate {
  private samples: { readonly atMs: number; readonly value: number }[] = [];

  /** Adds the present value. `atMs` is a time of a clock that never jumps. */
  add(atMs: number, value: number): void {
    const last = this.samples.at(-1);
    // A smaller value is one of another server or of other sessions.
    if (last !== undefined && value < last.value) this.samples = [];
    else if (this.samples.length > 1 && atMs - (this.samples.at(-2)?.atMs ?? 0) < STEP_MS) this.samples.pop();
    this.samples.push({ atMs, value });
    while ((this.samples[1]?.atMs ?? atMs) < atMs - WINDOW_MS) this.samples.shift();
  }

  /** Returns the growth per second; `null` before there are two values. */
  perSecond(): number | null {
    const [first, last] = [this.samples[0], this.samples.at(-1)];
    if (first === undefined || last === undefined || last.atMs === first.atMs) return null;
    return ((last.value - first.value) * 1000) / (last.atMs - first.atMs);
  }

  /** Returns the milliseconds until the value has grown by `rest` at this rate; `null` when it does not grow. */
  msUntil(rest: number): number | null {
    const rate = this.perSecond();
    if (rest <= 0) return 0;
    return rate === null || rate <= 0 ? null : (rest * 1000) / rate;
  }
}
