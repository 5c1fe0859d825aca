import { FloeError } from '../../../src/core/errors.ts';
import type { StoreTables } from '../../../src/store/store.ts';
import { MemoryState } from './state.ts';
import type { RowChange } from './table.ts';
import { tablesOf } from './tables.ts';

/**
 * How a write to disk ended. `synced`: it is safe. `refused`: nothing of it stays. `unknown`: it is safe, but who asked for it is told
 * that it failed, as when a connection breaks during the commit.
 */
export type SyncOutcome = 'synced' | 'refused' | 'unknown';

/** What a database stands on. Simulations give their own, to let it fail. */
export interface Disk {
  sync(): Promise<SyncOutcome>;
  /** Whether another transaction got in the way of one that has just done its work, so that it is undone and runs again. */
  interrupts(): boolean;
  /** Called with what a transaction has changed once it is safe, and before anybody is told. Must not throw. */
  committed(changes: readonly RowChange[]): void;
}

const FLAWLESS_DISK: Disk = { sync: async () => 'synced', interrupts: () => false, committed: () => {} };

/** Rows in memory that several connections share. One transaction at a time runs and is synced. */
export class MemoryDatabase {
  readonly state = new MemoryState();
  private readonly tables: StoreTables;
  private readonly disk: Disk;
  private readonly listeners = new Set<{ readonly owner: object; readonly listener: (message: string) => void }>();
  private turn: Promise<unknown> = Promise.resolve();
  /** Changes that are visible and would be lost if the power failed now. */
  private unsynced: RowChange[] = [];
  /** How often the power has failed. */
  private losses = 0;

  constructor(disk: Disk = FLAWLESS_DISK) {
    this.disk = disk;
    this.tables = tablesOf(this.state);
  }

  /** As `Store.transaction`. */
  run<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const result = this.turn.then(() => this.runAlone(work));
    this.turn = result.catch(() => undefined);
    return result;
  }

  /** Resolves when what was asked for so far has ended. */
  async idle(): Promise<void> {
    await this.turn;
  }

  /** The power fails: what is not synced is gone. */
  lose(): void {
    this.losses++;
    this.state.undo(this.unsynced);
    this.unsynced = [];
  }

  subscribe(owner: object, listener: (message: string) => void): () => void {
    const entry = { owner, listener };
    this.listeners.add(entry);
    return () => this.listeners.delete(entry);
  }

  /** Tells all but the listeners of `owner`. */
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
    const { losses } = this;
    this.unsynced.push(...changes);
    const outcome = await this.disk.sync();
    if (outcome === 'refused' || losses !== this.losses) {
      if (losses === this.losses) this.state.undo(this.unsynced);
      this.unsynced = [];
      throw new FloeError('store_unavailable', 'the disk did not take a transaction');
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
