/** Random numbers of one seed, the same on every machine: sfc32 by Chris Doty-Humphrey. */
export class Dice {
  private a: number;
  private b: number;
  private c = 0x9e3779b9;
  private counter = 1;

  constructor(seed: number) {
    this.a = seed | 0;
    this.b = Math.floor(seed / 2 ** 32) | 0;
    // The first numbers still show the seed.
    for (let i = 0; i < 12; i++) this.next();
  }

  /** From 0 up to 1. */
  next(): number {
    const sum = (((this.a + this.b) | 0) + this.counter) | 0;
    this.counter = (this.counter + 1) | 0;
    this.a = this.b ^ (this.b >>> 9);
    this.b = (this.c + (this.c << 3)) | 0;
    this.c = (((this.c << 21) | (this.c >>> 11)) + sum) | 0;
    return (sum >>> 0) / 2 ** 32;
  }

  chance(probability: number): boolean {
    return probability > 0 && this.next() < probability;
  }

  between(from: number, to: number): number {
    return from + this.next() * (to - from);
  }

  /** A whole number, both ends included. */
  whole(from: number, to: number): number {
    return from + Math.floor(this.next() * (to - from + 1));
  }

  pick<T>(list: readonly T[]): T {
    return list[Math.floor(this.next() * list.length)] as T;
  }

  /** Numbers of their own, so that what one part of a world draws changes nothing for the others. */
  fork(): Dice {
    return new Dice(Math.floor(this.next() * 2 ** 32) + this.whole(0, 2 ** 20) * 2 ** 32);
  }
}
