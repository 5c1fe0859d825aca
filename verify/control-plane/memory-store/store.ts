import { FloeError } from '@floe-rl/core';
import type { Store, StoreTables } from '#server/store/store';
import { MemoryDatabase } from './database.ts';

/**
 * A store in memory, for tests and simulations. Stores that are created with the same database share its rows and receive each other's
 * messages.
 */
export class MemoryStore implements Store {
  private readonly database: MemoryDatabase;
  private closed = false;

  constructor(database = new MemoryDatabase()) {
    this.database = database;
  }

  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    if (this.closed) return Promise.reject(new FloeError('not_ready', 'the store is closed'));
    return this.database.run(work);
  }

  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.transaction(work);
  }

  announce(message: string): void {
    this.database.announce(this, message);
  }

  listen(listener: (message: string) => void): () => void {
    return this.database.subscribe(this, listener);
  }

  async close(): Promise<void> {
    this.closed = true;
    await this.database.idle();
  }
}
