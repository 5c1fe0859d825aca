import { onAbort } from './abort.ts';

/** A counting semaphore with first-come waiting and cancellation. `acquire` returns the release, which is safe to call twice. */
export class Semaphore {
  readonly size: number;
  private taken = 0;
  private waiters: { grant: () => void }[] = [];

  constructor(size: number) {
    if (!Number.isInteger(size) || size < 1) throw new RangeError(`semaphore size must be at least 1, not ${size}`);
    this.size = size;
  }

  get inUse(): number {
    return this.taken;
  }

  get free(): number {
    return this.size - this.taken;
  }

  get waiting(): number {
    return this.waiters.length;
  }

  /** Rejects with the signal's reason when it aborts first; then nothing is held. */
  acquire(signal?: AbortSignal): Promise<() => void> {
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.taken < this.size) {
      this.taken++;
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
      if (next === undefined) this.taken--;
      else next.grant();
    };
  }
}
