import { FloeError } from '@floe-rl/core';
import { type RawBuilder, sql } from 'kysely';
import type { QueryBuilder } from '../sql/database.ts';
import { tablesOver } from '../sql/tables.ts';
import type { Store, StoreTables } from '../store.ts';
import { openConnection, openReader, type SqliteConnection } from './connection.ts';
import { SQLITE_FLAVOR } from './flavor.ts';

/**
 * Maximum number of transactions that are committed together. It bounds how long the first transaction of a batch waits for the last one.
 */
const MAX_BATCH = 64;

/** A transaction that waits to be run, with the functions that settle the promise of its caller. */
type PendingTransaction = {
  readonly work: (tables: StoreTables) => Promise<unknown>;
  readonly resolve: (value: unknown) => void;
  readonly reject: (reason: unknown) => void;
};

/**
 * The embedded store: one SQLite file with one writer. Transactions that wait at the same time are committed together, each in a separate
 * savepoint, so that they share the cost of the disk's sync. No transaction is acknowledged before the common commit. Reads use a separate
 * connection and see at least everything that was committed when they were called.
 */
export class SqliteStore implements Store {
  private readonly writer: TransactionQueue;
  private readonly reader: TransactionQueue;
  private closed = false;

  private constructor(writer: SqliteConnection, reader: SqliteConnection | null) {
    this.writer = new TransactionQueue(writer, 'begin immediate');
    this.reader = reader === null ? this.writer : new TransactionQueue(reader, 'begin');
  }

  /**
   * Opens a store. `path` is a file, which is created if it is missing, or `:memory:` for a database in memory. Throws `setup_failed` when
   * the file cannot be used. `notify` is called with a notice when other users could access an existing file, which is then restricted.
   */
  static open(path: string, notify?: (notice: string) => void): SqliteStore {
    const writer = openConnection(path, notify);
    return new SqliteStore(writer, path === ':memory:' ? null : openReader(path));
  }

  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.closed ? refused() : this.writer.run(work);
  }

  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.closed ? refused() : this.reader.run(work);
  }

  /** Does nothing, because no other server can use the database file. */
  announce(): void {}

  listen(): () => void {
    return () => {};
  }

  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    await Promise.all([this.reader.close(), this.writer.close()]);
  }
}

function refused(): Promise<never> {
  return Promise.reject(new FloeError('not_ready', 'the store is closed'));
}

/** Queue of transactions of one connection. It runs them in batches and commits each batch at once. */
class TransactionQueue {
  private readonly connection: SqliteConnection;
  private readonly begin: RawBuilder<unknown>;
  private pending: PendingTransaction[] = [];
  private draining: Promise<void> | null = null;
  private closing: Promise<void> | null = null;

  constructor(connection: SqliteConnection, begin: string) {
    this.connection = connection;
    this.begin = sql.raw(begin);
  }

  run<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.pending.push({ work, resolve: resolve as (value: unknown) => void, reject });
      this.draining ??= this.drain();
    });
  }

  /** Waits for the pending transactions, then closes the connection. May be called more than once. */
  close(): Promise<void> {
    this.closing ??= this.end();
    return this.closing;
  }

  private async end(): Promise<void> {
    while (this.draining !== null) await this.draining;
    await this.connection.kysely.destroy();
  }

  private async drain(): Promise<void> {
    // Waits until all transactions that are started in this turn of the event loop are pending, so that they join the first batch and share
    // its sync to disk.
    await new Promise(setImmediate);
    try {
      await this.connection.kysely.connection().execute(async (kysely) => {
        while (this.pending.length > 0) await this.commitBatch(kysely, this.pending.splice(0, MAX_BATCH));
      });
    } finally {
      this.draining = null;
      // A transaction that was added after the loop had ended did not call `drain`, because `draining` was still set. `drain` is called for
      // it now.
      if (this.pending.length > 0) this.draining = this.drain();
    }
  }

  /** Runs and commits a batch of transactions. Never throws: when the commit fails, it rejects the promises of all callers of the batch. */
  private async commitBatch(kysely: QueryBuilder, batch: readonly PendingTransaction[]): Promise<void> {
    const settle: (() => void)[] = [];
    try {
      // A disk failure may have prevented the rollback of the previous batch. If that batch is still open, it is rolled back now.
      await this.rollback(kysely);
      await run(kysely, this.begin);
      const tables = tablesOver(kysely, SQLITE_FLAVOR);
      for (const pending of batch) settle.push(await this.runOne(kysely, tables, pending));
      await run(kysely, sql`commit`);
    } catch (thrown) {
      const error = asStoreError(thrown);
      for (const pending of batch) pending.reject(error);
      // If this rollback also fails, the next batch repeats it.
      await this.rollback(kysely).catch(() => {});
      return;
    }
    for (const resolveOrReject of settle) resolveOrReject();
  }

  private async rollback(kysely: QueryBuilder): Promise<void> {
    if (this.connection.inTransaction()) await run(kysely, sql`rollback`);
  }

  /**
   * Runs one transaction of a batch. Returns a function that resolves or rejects the caller's promise, to be called after the batch has
   * committed. Throws only when the whole batch has been rolled back.
   */
  private async runOne(kysely: QueryBuilder, tables: StoreTables, pending: PendingTransaction): Promise<() => void> {
    await run(kysely, sql`savepoint one`);
    try {
      const value = await pending.work(tables);
      await run(kysely, sql`release one`);
      return () => pending.resolve(value);
    } catch (thrown) {
      // When the disk is full, SQLite rolls back the whole batch, so the transaction's savepoint no longer exists.
      if (!this.connection.inTransaction()) throw thrown;
      await run(kysely, sql`rollback to one`);
      await run(kysely, sql`release one`);
      return () => pending.reject(asStoreError(thrown));
    }
  }
}

async function run(kysely: QueryBuilder, statement: RawBuilder<unknown>): Promise<void> {
  await statement.execute(kysely);
}

/** Converts errors of SQLite to `store_unavailable`. A violated constraint is a defect of floe and is returned unchanged. */
function asStoreError(thrown: unknown): unknown {
  if (FloeError.is(thrown) || !(thrown instanceof Error) || !('code' in thrown)) return thrown;
  const code = String(thrown.code);
  if (!code.startsWith('SQLITE_') || code.startsWith('SQLITE_CONSTRAINT')) return thrown;
  return new FloeError(
    'store_unavailable',
    `the database refused a transaction: ${thrown.message} (${code})`,
    { code },
    thrown,
  );
}
