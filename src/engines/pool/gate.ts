import { FloeError } from '../../core/errors.ts';
import type { PauseOptions } from '../pool.ts';

/** Weight updates take seconds; a harness that asks again sooner only burns its retries. */
const RETRY_AFTER_MS = 2_000;

/** What new calls meet first: open, or closed while engines are paused. */
export class Gate {
  private options: PauseOptions | null = null;
  private waiters = new Set<() => void>();

  get closed(): PauseOptions | null {
    return this.options;
  }

  close(options: PauseOptions): void {
    this.options = options;
    // Who waits looks again: it may be refused now.
    this.wake();
  }

  open(): void {
    this.options = null;
    this.wake();
  }

  /** Resolves when the gate is open. Rejects with `overloaded` when calls are refused meanwhile, or with the signal's reason. */
  async pass(signal: AbortSignal): Promise<void> {
    while (this.options !== null) {
      if (this.options.whilePaused === 'reject') {
        throw new FloeError('overloaded', 'the engines are paused for a weight update; try again', {
          paused: true,
          retry_after_ms: RETRY_AFTER_MS,
        });
      }
      await this.change(signal);
    }
  }

  /** As {@link pass} for a call that had passed before: it waits, whatever new ones meet. */
  async opened(signal: AbortSignal): Promise<void> {
    while (this.options !== null) await this.change(signal);
  }

  private wake(): void {
    const waiters = this.waiters;
    this.waiters = new Set();
    for (const wake of waiters) wake();
  }

  private change(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason);
      const onAbort = (): void => {
        this.waiters.delete(wake);
        reject(signal.reason);
      };
      const wake = (): void => {
        signal.removeEventListener('abort', onAbort);
        resolve();
      };
      signal.addEventListener('abort', onAbort, { once: true });
      this.waiters.add(wake);
    });
  }
}
