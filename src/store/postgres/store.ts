import pg from 'pg';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { OutdatedRead, type QueryBuilder, type SqlFlavor } from '../sql/database.ts';
import { tablesOver } from '../sql/tables.ts';
import type { Store, StoreTables } from '../store.ts';
import { Announcements } from './announcements.ts';
import { BoundedClient, clientConfig, kyselyOver, shownDatabase } from './connection.ts';
import { asDriverError, asStoreError, isConflict, isMisconfigured, unavailable } from './failures.ts';
import { POSTGRES_FLAVOR, READ_FLAVOR } from './flavor.ts';
import { createTables } from './schema.ts';

/**
 * Maximum number of connections of one floe server. They suffice for PostgreSQL to sync several commits together, and several servers can
 * share its default limit of 100 connections.
 */
const MAX_CONNECTIONS = 12;

/**
 * Maximum number of runs of one transaction. Conflicts are rare because all transactions lock rows in the same order, so after this many
 * the database is overloaded.
 */
const MAX_TRIES = 8;

/** A connection of the pool. `begun` resolves when its current transaction has begun. */
type Connection = { readonly client: BoundedClient; readonly kysely: QueryBuilder; begun: Promise<unknown> };

type Mode = { readonly begin: string; readonly flavor: SqlFlavor; readonly writes: boolean };

const WRITE: Mode = { begin: 'begin isolation level read committed', flavor: POSTGRES_FLAVOR, writes: true };
const READ: Mode = { begin: 'begin isolation level repeatable read read only', flavor: READ_FLAVOR, writes: false };

/**
 * A store in PostgreSQL, for any number of concurrent servers. While PostgreSQL is down, hung or full, transactions throw
 * `store_unavailable` within seconds; once it is back, they succeed. When the connection breaks during a commit, it is unknown whether the
 * commit took place. The store then throws `store_unavailable` as well, and callers repeat the operation.
 */
export class PostgresStore implements Store {
  private readonly clock: Clock;
  private readonly pool: pg.Pool;
  private readonly announcements: Announcements;
  private readonly connections = new WeakMap<pg.PoolClient, Connection>();
  private readonly statementNames = new Map<string, string>();
  private readonly running = new Set<Promise<unknown>>();
  private closed: Promise<void> | null = null;

  private constructor(url: string, clock: Clock) {
    const config = clientConfig(url);
    this.clock = clock;
    this.pool = new pg.Pool({ ...config, max: MAX_CONNECTIONS, allowExitOnIdle: true });
    // Errors of connections are ignored here. The pool removes an idle connection that breaks, and when one breaks in use, the statement
    // in progress fails.
    this.pool.on('error', () => {});
    this.pool.on('connect', (client) => client.on('error', () => {}));
    this.announcements = new Announcements(config, clock);
  }

  /**
   * Opens the database, and creates the tables if it is empty. Throws `setup_failed` when it does not exist, when access is denied or when
   * it has another format, and `store_unavailable` when it cannot be reached.
   */
  static async open(url: string, { clock }: { readonly clock: Clock }): Promise<PostgresStore> {
    const store = new PostgresStore(url, clock);
    try {
      await store.withConnection(({ client }) => createTables(client, shownDatabase(url)));
      await store.announcements.start();
      return store;
    } catch (thrown) {
      await store.close();
      if (FloeError.is(thrown) && !isMisconfigured(thrown)) throw thrown;
      const reason = thrown instanceof Error ? thrown.message : String(thrown);
      throw new FloeError('setup_failed', `the database ${shownDatabase(url)} cannot be used: ${reason}`, {}, thrown);
    }
  }

  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.start(WRITE, work);
  }

  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.start(READ, work);
  }

  announce(message: string): void {
    this.announcements.announce(message);
  }

  listen(listener: (message: string) => void): () => void {
    return this.announcements.listen(listener);
  }

  close(): Promise<void> {
    this.closed ??= this.end();
    return this.closed;
  }

  private async end(): Promise<void> {
    await this.announcements.close();
    await Promise.allSettled(this.running);
    await this.pool.end();
  }

  private start<T>(mode: Mode, work: (tables: StoreTables) => Promise<T>): Promise<T> {
    if (this.closed !== null) return Promise.reject(new FloeError('not_ready', 'the store is closed'));
    const result = this.runUntilCommitted(mode, work);
    this.running.add(result);
    const forget = (): void => void this.running.delete(result);
    result.then(forget, forget);
    return result;
  }

  /** Runs the work in a transaction, and repeats both after a conflict with another transaction. */
  private async runUntilCommitted<T>(mode: Mode, work: (tables: StoreTables) => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries++) {
      try {
        return await this.withConnection((connection) => runOnce(connection, mode, work));
      } catch (thrown) {
        if (!isConflict(thrown) && !(thrown instanceof OutdatedRead)) throw thrown;
        if (tries < MAX_TRIES) continue;
        if (thrown instanceof OutdatedRead) throw unavailable('each retry conflicted with another transaction', thrown);
        throw asStoreError(thrown);
      }
    }
  }

  /**
   * Runs `use` with a connection of the pool. A failure of the database server is converted to `store_unavailable`, and the connection is
   * closed.
   */
  private async withConnection<T>(use: (connection: Connection) => Promise<T>): Promise<T> {
    let client: pg.PoolClient;
    try {
      client = await this.pool.connect();
    } catch (thrown) {
      throw asStoreError(asDriverError(thrown));
    }
    try {
      const value = await use(this.connectionOf(client));
      client.release();
      return value;
    } catch (thrown) {
      const error = isConflict(thrown) ? thrown : asStoreError(thrown);
      // Closes the connection after such a failure also when it is intact, because after a failover old connections stay read-only
      // indefinitely.
      client.release(error !== thrown || client.getTransactionStatus() !== 'I');
      throw error;
    }
  }

  private connectionOf(raw: pg.PoolClient): Connection {
    const known = this.connections.get(raw);
    if (known !== undefined) return known;
    const client = new BoundedClient(raw, this.clock, this.statementNames);
    const connection: Connection = {
      client,
      kysely: kyselyOver(client, () => connection.begun),
      begun: Promise.resolve(),
    };
    this.connections.set(raw, connection);
    return connection;
  }
}

async function runOnce<T>(
  connection: Connection,
  { begin, flavor, writes }: Mode,
  work: (tables: StoreTables) => Promise<T>,
): Promise<T> {
  const { client } = connection;
  connection.begun = client.run(begin);
  // The statements that need the transaction wait for this promise and receive its failure. It may be rejected before any of them waits,
  // which must not end the process.
  connection.begun.catch(() => {});
  let value: T;
  try {
    value = await work(tablesOver(connection.kysely, flavor));
    await connection.begun;
  } catch (thrown) {
    // If the rollback fails as well, the connection is closed, which also ends the transaction.
    await client.run('rollback').catch(() => {});
    throw thrown;
  }
  const ended = client.run('commit');
  if (!writes) {
    // All rows have been read, so the end of the transaction is not awaited. If the connection is broken, its next statement fails.
    ended.catch(() => {});
    return value;
  }
  // When a statement of the transaction has failed, PostgreSQL answers `commit` with `ROLLBACK` instead of an error.
  if ((await ended).command !== 'COMMIT') {
    throw new Error('the work ignored a statement that failed, so nothing was committed');
  }
  return value;
}
