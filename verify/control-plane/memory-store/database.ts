import { FloeError } from '@floe-rl/core';
import type { StoreTables } from '#server/store/store';
import { MemoryState, type RowChange } from './state.ts';

import { tablesOf } from './tables.ts';

/**
 * How a sync to disk ended. `synced`: the changes are durable. `refused`: nothing was written. `unknown`: the changes are durable, but the
 * code that committed gets an error, as when a connection breaks during the commit.
 */
export type SyncOutcome = 'synced' | 'refused' | 'unknown';

/** The disk to which the in-memory database is synced. Simulations pass an implementation that injects faults. */
export interface Disk {
  sync(): Promise<SyncOutcome>;
  /** Whether to treat the transaction that has just run as conflicting with another transaction, so that it is rolled back and repeated. */
  interrupts(): boolean;
  /** Called with the changes of a transaction when they are durable, before the transaction's promise resolves. Must not throw. */
  committed(changes: readonly RowChange[]): void;
}

const FLAWLESS_DISK: Disk = { sync: async () => 'synced', interrupts: () => false, committed: () => {} };

/** A database in memory that several stores share. It runs and syncs one transaction after the other. */
export class MemoryDatabase {
  readonly state = new MemoryState();
  private readonly tables: StoreTables;
  private readonly disk: Disk;
  private readonly listeners = new Set<{ readonly owner: object; readonly listener: (message: string) => void }>();
  private turn: Promise<unknown> = Promise.resolve();
  /** Changes that transactions can already read but that are not synced yet, so that a power failure would lose them. */
  private unsynced: RowChange[] = [];
  private powerFailures = 0;

  constructor(disk: Disk = FLAWLESS_DISK) {
    this.disk = disk;
    this.tables = tablesOf(this.state);
  }

  /** Runs `work` in one transaction, with the guarantees that `Store.transaction` documents. */
  run<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const result = this.turn.then(() => this.runAlone(work));
    this.turn = result.catch(() => undefined);
    return result;
  }

  /** Resolves when all transactions that have been started so far have ended. */
  async idle(): Promise<void> {
    await this.turn;
  }

  /** Simulates a power failure: undoes all changes that have not been synced. */
  losePower(): void {
    this.powerFailures++;
    this.state.undo(this.unsynced);
    this.unsynced = [];
  }

  subscribe(owner: object, listener: (message: string) => void): () => void {
    const entry = { owner, listener };
    this.listeners.add(entry);
    return () => this.listeners.delete(entry);
  }

  /** Sends a message to all listeners except the listeners of the sending store, which were subscribed with the same `owner`. */
  announce(owner: object, message: string): void {
    for (const entry of [...this.listeners]) if (entry.owner !== owner) entry.listener(message);
  }

  private async runAlone<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const value = await this.attempt(work);
    const changes = this.state.take();
    if (changes.length === 0) return value;
    if (this.disk.interrupts()) {
      this.state.undo(changes);
      return this.runAlone(work);
    }
    const { powerFailures } = this;
    this.unsynced.push(...changes);
    const outcome = await this.disk.sync();
    if (outcome === 'refused' || powerFailures !== this.powerFailures) {
      if (powerFailures === this.powerFailures) this.state.undo(this.unsynced);
      this.unsynced = [];
      throw new FloeError('store_unavailable', 'the disk refused a transaction');
    }
    this.unsynced = [];
    this.disk.committed(changes);
    if (outcome === 'unknown') throw new FloeError('store_unavailable', 'the connection broke during a commit');
    return value;
  }

  private async attempt<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    try {
      return await work(this.tables);
    } catch (thrown) {
      this.state.undo(this.state.take());
      throw thrown;
    }
  }
}
