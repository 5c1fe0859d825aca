import { onAbort } from './abort.ts';

/** A counting semaphore that grants permits in the order in which they were requested. */
export class Semaphore {
  readonly size: number;
  private held = 0;
  private waiters: { grant: () => void }[] = [];

  constructor(size: number) {
    if (!Number.isInteger(size) || size < 1) throw new RangeError(`semaphore size must be at least 1, not ${size}`);
    this.size = size;
  }

  get inUse(): number {
    return this.held;
  }

  get free(): number {
    return this.size - this.held;
  }

  get waiting(): number {
    return this.waiters.length;
  }

  /**
   * Waits for a permit. Resolves with a function that releases the permit; calling that function twice has no effect. Rejects with the
   * reason of `signal` when the signal aborts first; no permit is held then.
   */
  acquire(signal?: AbortSignal): Promise<() => void> {
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.held < this.size) {
      this.held++;
      return Promise.resolve(this.releaseOnce());
    }
    return new Promise((resolve, reject) => {
      const waiter = {
        grant: () => {
          release();
          resolve(this.releaseOnce());
        },
      };
      const release = onAbort(signal, () => {
        this.waiters = this.waiters.filter((other) => other !== waiter);
        reject(signal?.reason);
      });
      this.waiters.push(waiter);
    });
  }

  private releaseOnce(): () => void {
    let released = false;
    return () => {
      if (released) return;
      released = true;
      const next = this.waiters.shift();
      if (next === undefined) this.held--;
      else next.grant();
    };
  }
}
