/** Generates random numbers from a seed, the same on every machine. The algorithm is sfc32 by Chris Doty-Humphrey. */
export class SeededRandom {
  private a: number;
  private b: number;
  private c = 0x9e3779b9;
  private counter = 1;

  constructor(seed: number) {
    this.a = seed | 0;
    this.b = Math.floor(seed / 2 ** 32) | 0;
    // The first numbers of the generator correlate with the seed, so they are discarded.
    for (let i = 0; i < 12; i++) this.next();
  }

  /** Returns a number in [0, 1). */
  next(): number {
    const sum = (((this.a + this.b) | 0) + this.counter) | 0;
    this.counter = (this.counter + 1) | 0;
    this.a = this.b ^ (this.b >>> 9);
    this.b = (this.c + (this.c << 3)) | 0;
    this.c = (((this.c << 21) | (this.c >>> 11)) + sum) | 0;
    return (sum >>> 0) / 2 ** 32;
  }

  /** Returns true with the given probability. Consumes no random number when the probability is 0. */
  chance(probability: number): boolean {
    return probability > 0 && this.next() < probability;
  }

  /** Returns a number that is at least `from` and less than `to`. */
  between(from: number, to: number): number {
    return from + this.next() * (to - from);
  }

  /** Returns an integer from `from` to `to`, both included. */
  integer(from: number, to: number): number {
    return from + Math.floor(this.next() * (to - from + 1));
  }

  /** Returns one item of a list that is not empty. */
  pick<T>(list: readonly T[]): T {
    return list[Math.floor(this.next() * list.length)] as T;
  }

  /**
   * Creates a generator for one part of a simulation, so that additional draws in this part do not change the numbers of the other parts.
   */
  fork(): SeededRandom {
    return new SeededRandom(Math.floor(this.next() * 2 ** 32) + this.integer(0, 2 ** 20) * 2 ** 32);
  }
}
