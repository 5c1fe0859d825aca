import { FloeError } from '../core/errors.ts';
import type { Store, StoreTables } from '../store/index.ts';
import type { Counters } from './status/counters.ts';

/** The store, and whether it works: what it refuses is counted, and the status tells of it until it takes something again. */
export class WatchedStore implements Store {
  private readonly inner: Store;
  private readonly counters: Counters;
  private latestFailure: string | null = null;

  constructor(inner: Store, counters: Counters) {
    this.inner = inner;
    this.counters = counters;
  }

  /** What the store said when it refused the latest transaction; null: it took it. */
  get failure(): string | null {
    return this.latestFailure;
  }

  async transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const value = await this.watch(this.inner.transaction(work));
    this.latestFailure = null;
    return value;
  }

  /** That it can be read does not say that it can be written. */
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
      if (FloeError.is(thrown) && thrown.code === 'store_unavailable') {
        this.latestFailure = thrown.message;
        this.counters.add('store_failures');
      }
      throw thrown;
    }
  }
}
