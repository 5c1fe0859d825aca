import type { Store, StoreTables } from '../../src/store/index.ts';

/**
 * A store that lets a test run code between two accesses of a server: after the server's next read or transaction, and before the server
 * receives its result.
 */
export class InterposedStore implements Store {
  private readonly inner: Store;
  private readonly hooks: { read: (() => Promise<void>) | null; transaction: (() => Promise<void>) | null } = {
    read: null,
    transaction: null,
  };

  constructor(inner: Store) {
    this.inner = inner;
  }

  /** Calls `hook` once, when the next access of this kind has ended. The access resolves when the promise of `hook` has resolved. */
  afterNext(kind: 'read' | 'transaction', hook: () => Promise<void>): void {
    this.hooks[kind] = hook;
  }

  async transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const value = await this.inner.transaction(work);
    await this.runHook('transaction');
    return value;
  }

  async read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const value = await this.inner.read(work);
    await this.runHook('read');
    return value;
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

  private async runHook(kind: 'read' | 'transaction'): Promise<void> {
    const hook = this.hooks[kind];
    this.hooks[kind] = null;
    await hook?.();
  }
}
