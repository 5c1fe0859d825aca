import { type RawBuilder, sql } from 'kysely';
import { FloeError } from '../../core/errors.ts';
import { SQLITE_FLAVOR } from '../sql/flavor.ts';
import { type Connection, tablesOver } from '../sql/tables.ts';
import type { Store, StoreTables } from '../store.ts';
import { openConnection, openReader, type SqliteConnection } from './connection.ts';

/** Transactions that share one commit. Bounds how long the first of them waits for the last. */
const MAX_BATCH = 64;

type Waiting = {
  readonly work: (tables: StoreTables) => Promise<unknown>;
  readonly resolve: (value: unknown) => void;
  readonly reject: (reason: unknown) => void;
};

/**
 * The embedded store: one SQLite file, one writer. Transactions that wait at the same time are committed together, each
 * in a savepoint of its own, so the cost of the disk's sync is shared; none is acknowledged before that commit. Reads have a
 * connection of their own and see what was committed when they were asked for, or later.
 */
export class SqliteStore implements Store {
  private readonly writer: Queue;
  private readonly reader: Queue;
  private closed = false;

  private constructor(writer: SqliteConnection, reader: SqliteConnection | null) {
    this.writer = new Queue(writer, 'begin immediate');
    this.reader = reader === null ? this.writer : new Queue(reader, 'begin');
  }

  /** `path` is a file, created when missing, or `:memory:`. Throws `setup_failed`. */
  static open(path: string): SqliteStore {
    const writer = openConnection(path);
    return new SqliteStore(writer, path === ':memory:' ? null : openReader(path));
  }

  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.closed ? refused() : this.writer.run(work);
  }

  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.closed ? refused() : this.reader.run(work);
  }

  /** The file has one server. */
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

/** Runs work over one connection, in batches of one transaction each. */
class Queue {
  private readonly connection: SqliteConnection;
  private readonly begin: RawBuilder<unknown>;
  private waiting: Waiting[] = [];
  private draining: Promise<void> | null = null;
  private closing: Promise<void> | null = null;

  constructor(connection: SqliteConnection, begin: string) {
    this.connection = connection;
    this.begin = sql.raw(begin);
  }

  run<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.waiting.push({ work, resolve: resolve as (value: unknown) => void, reject });
      this.draining ??= this.drain();
    });
  }

  /** Waits for what was asked for, once however often it is called. */
  close(): Promise<void> {
    this.closing ??= this.end();
    return this.closing;
  }

  private async end(): Promise<void> {
    while (this.draining !== null) await this.draining;
    await this.connection.kysely.destroy();
  }

  private async drain(): Promise<void> {
    // Lets everything that asks in this turn of the event loop join the first batch, and share its sync to disk.
    await new Promise(setImmediate);
    try {
      await this.connection.kysely.connection().execute(async (kysely) => {
        while (this.waiting.length > 0) await this.commitBatch(kysely, this.waiting.splice(0, MAX_BATCH));
      });
    } finally {
      this.draining = null;
      // Whoever asked after the last look found a drain that was already ending.
      if (this.waiting.length > 0) this.draining = this.drain();
    }
  }

  /** Never throws: whoever waits is told. */
  private async commitBatch(kysely: Connection, batch: readonly Waiting[]): Promise<void> {
    const settle: (() => void)[] = [];
    try {
      // A disk that failed may have kept the last batch from being undone.
      await this.rollback(kysely);
      await run(kysely, this.begin);
      const tables = tablesOver(kysely, SQLITE_FLAVOR);
      for (const waiting of batch) settle.push(await this.runOne(kysely, tables, waiting));
      await run(kysely, sql`commit`);
    } catch (thrown) {
      const error = asStoreError(thrown);
      for (const waiting of batch) waiting.reject(error);
      // What fails now is tried again by the next batch.
      await this.rollback(kysely).catch(() => {});
      return;
    }
    for (const tell of settle) tell();
  }

  private async rollback(kysely: Connection): Promise<void> {
    if (this.connection.inTransaction()) await run(kysely, sql`rollback`);
  }

  /** Throws only when the whole batch is lost. */
  private async runOne(kysely: Connection, tables: StoreTables, waiting: Waiting): Promise<() => void> {
    await run(kysely, sql`savepoint one`);
    try {
      const value = await waiting.work(tables);
      await run(kysely, sql`release one`);
      return () => waiting.resolve(value);
    } catch (thrown) {
      // A full disk makes SQLite roll the whole transaction back by itself.
      if (!this.connection.inTransaction()) throw thrown;
      await run(kysely, sql`rollback to one`);
      await run(kysely, sql`release one`);
      return () => waiting.reject(asStoreError(thrown));
    }
  }
}

async function run(kysely: Connection, statement: RawBuilder<unknown>): Promise<void> {
  await statement.execute(kysely);
}

/** SQLite's own failures become `store_unavailable`; a violated constraint is a defect and stays what it is. */
function asStoreError(thrown: unknown): unknown {
  if (FloeError.is(thrown) || !(thrown instanceof Error) || !('code' in thrown)) return thrown;
  const code = String(thrown.code);
  if (!code.startsWith('SQLITE_') || code.startsWith('SQLITE_CONSTRAINT')) return thrown;
  return new FloeError('store_unavailable', `the database refused: ${thrown.message} (${code})`, { code }, thrown);
}
