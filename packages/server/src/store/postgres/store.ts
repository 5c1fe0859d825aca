import { type Clock, FloeError, messageOf } from '@floe-rl/core';
import pg from 'pg';
import { OutdatedRead, type QueryBuilder, type SqlFlavor } from '../sql/database.ts';
import { tablesOver } from '../sql/tables.ts';
import type { Store, StoreTables } from '../store.ts';
import { Announcements } from './announcements.ts';
import { BoundedClient, clientConfig, kyselyOver, shownDatabase } from './connection.ts';
import { asDriverError, asStoreError, isConflict, isMisconfigured, unavailable } from './failures.ts';
import { POSTGRES_FLAVOR, READ_FLAVOR } from './flavor.ts';
import { createTables } from './schema.ts';

/**
 * Maximum number of connections of one floe server. With 12 connections PostgreSQL can sync several commits together, and several servers
 * can share PostgreSQL's default limit of 100 connections.
 */
const MAX_CONNECTIONS = 12;

/**
 * Maximum number of runs of one transaction. Conflicts are rare because all transactions lock rows in the same order, so a transaction that
 * conflicts this often means that the database is overloaded.
 */
const MAX_TRIES = 8;

/** A connection of the pool. `begun` resolves when the connection's current transaction has begun. */
type Connection = { readonly client: BoundedClient; readonly kysely: QueryBuilder; begun: Promise<unknown> };

type Mode = { readonly begin: string; readonly flavor: SqlFlavor; readonly writes: boolean };

const WRITE: Mode = { begin: 'begin isolation level read committed', flavor: POSTGRES_FLAVOR, writes: true };
const READ: Mode = { begin: 'begin isolation level repeatable read read only', flavor: READ_FLAVOR, writes: false };

/**
 * A store in PostgreSQL, for any number of concurrent servers. While PostgreSQL is down, hung or full, transactions throw
 * `store_unavailable` within seconds; afterwards they succeed without a restart. When the connection breaks during a commit, it is unknown
 * whether the commit took place. The store then also throws `store_unavailable`, and callers repeat the operation.
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
    // Errors of connections are ignored in these listeners. The pool removes an idle connection that breaks, and on a connection in use the
    // running statement fails.
    this.pool.on('error', () => {});
    this.pool.on('connect', (client) => client.on('error', () => {}));
    this.announcements = new Announcements(config, clock);
  }

  /**
   * Opens the database, and creates the tables if it is empty. Throws `setup_failed` when the database does not exist, denies access or has
   * another format, and `store_unavailable` when it cannot be reached.
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
      const reason = messageOf(thrown);
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

  /** Runs `work` in a transaction. After a conflict with another transaction, runs `work` once more in a new transaction. */
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

  /** Runs `use` with a connection of the pool. When the database server fails, throws `store_unavailable` and closes the connection. */
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
      // After an error of the database server, the connection is closed even if it is intact, because a connection that survives a failover
      // stays read-only indefinitely.
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
  // The statements that need the transaction wait for `begun` and receive its failure. The empty handler keeps the process alive when
  // `begun` is rejected before any statement waits for it.
  connection.begun.catch(() => {});
  let value: T;
  try {
    value = await work(tablesOver(connection.kysely, flavor));
    await connection.begun;
  } catch (thrown) {
    // If the rollback also fails, the connection is closed, which ends the transaction as well.
    await client.run('rollback').catch(() => {});
    throw thrown;
  }
  const ended = client.run('commit');
  if (!writes) {
    // All rows have been read, so the end of a read-only transaction is not awaited. If the connection is broken, its next statement fails.
    ended.catch(() => {});
    return value;
  }
  // When a statement of the transaction has failed, PostgreSQL responds to `commit` with `ROLLBACK` instead of an error.
  if ((await ended).command !== 'COMMIT') {
    throw new Error('the work ignored a statement that failed, so nothing was committed');
  }
  return value;
}
