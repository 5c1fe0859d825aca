import { FloeError } from '@floe-rl/core';
import type { Store, StoreTables } from '../store/index.ts';
import type { Counters } from './status/counters.ts';

/**
 * Wraps the store and counts its failures. Keeps the message of the latest failure, which `GET /rollout/status` shows, until a transaction
 * succeeds.
 */
export class WatchedStore implements Store {
  private readonly inner: Store;
  private readonly counters: Counters;
  private latestFailure: string | null = null;

  constructor(inner: Store, counters: Counters) {
    this.inner = inner;
    this.counters = counters;
  }

  /** The error message with which the store refused the latest transaction; `null` when the latest one succeeded. */
  get failure(): string | null {
    return this.latestFailure;
  }

  async transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const value = await this.watch(this.inner.transaction(work));
    this.latestFailure = null;
    return value;
  }

  /** Reads from the store. A successful read does not clear `failure`, because a store that can be read may still refuse writes. */
  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.watch(this.inner.read(work));
  }

  announce(message: string): void {
    this.inner.announce(message);
  }

  listen(listener: (message: string) => void): () => void {
    return this.inner.listen(listener);
  }

  close(): Promise<void> {
    return this.inner.close();
  }

  private async watch<T>(running: Promise<T>): Promise<T> {
    try {
      return await running;
    } catch (thrown) {
      if (isStoreUnavailable(thrown)) {
        this.latestFailure = thrown.message;
        this.counters.add('store_failures');
      }
      throw thrown;
    }
  }
}

export function isStoreUnavailable(thrown: unknown): thrown is FloeError {
  return FloeError.is(thrown) && thrown.code === 'store_unavailable';
}

/**
 * Runs one round of background work. When the store is unavailable, it logs `postponed` and resolves to `undefined`; nothing is lost,
 * because the rows stay in the store and the caller's next round finds them. Throws every other error.
 */
export async function postponeWhileUnavailable<T>(
  log: { error(fields: object, message: string): void },
  postponed: string,
  work: () => Promise<T>,
): Promise<T | undefined> {
  try {
    return await work();
  } catch (thrown) {
    if (!isStoreUnavailable(thrown)) throw thrown;
    log.error({ err: thrown }, `the store is unavailable; ${postponed} until it is back`);
    return undefined;
  }
}
