import pg from 'pg';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { SqlFlavor } from '../sql/flavor.ts';
import { type Connection, tablesOver } from '../sql/tables.ts';
import { WorkAgain } from '../sql/work-again.ts';
import type { Store, StoreTables } from '../store.ts';
import { Announcements } from './announcements.ts';
import { BoundedClient, clientConfig, shownDatabase } from './client.ts';
import { asDriverError, asStoreError, isInTheWay, isMisconfigured, unavailable } from './failures.ts';
import { POSTGRES_FLAVOR, READ_FLAVOR } from './flavor.ts';
import { kyselyOver } from './kysely-connection.ts';
import { migrate } from './migrate.ts';

/** Enough to keep the server's disk busy with commits that it syncs together; several floe servers share its limit of 100. */
const CONNECTIONS = 12;

/** Transactions rarely meet, since all lock in one order; one that is still in the way after this many tries tells of overload. */
const MAX_TRIES = 8;

type Session = { readonly client: BoundedClient; readonly kysely: Connection; begun: Promise<unknown> };

type Mode = { readonly begin: string; readonly flavor: SqlFlavor; readonly writes: boolean };

const WRITE: Mode = { begin: 'begin isolation level read committed', flavor: POSTGRES_FLAVOR, writes: true };
const READ: Mode = { begin: 'begin isolation level repeatable read read only', flavor: READ_FLAVOR, writes: false };

/**
 * A store in PostgreSQL, for any number of servers at a time. A server of PostgreSQL that is gone, hung or full is a
 * `store_unavailable`, within seconds; when it is back, so is the store. When the connection breaks during a commit it is
 * not known whether it took place: that too is `store_unavailable`, and callers repeat.
 */
export class PostgresStore implements Store {
  private readonly clock: Clock;
  private readonly pool: pg.Pool;
  private readonly announcements: Announcements;
  private readonly sessions = new WeakMap<pg.PoolClient, Session>();
  private readonly statementNames = new Map<string, string>();
  private readonly running = new Set<Promise<unknown>>();
  private closed: Promise<void> | null = null;

  private constructor(url: string, clock: Clock) {
    const config = clientConfig(url);
    this.clock = clock;
    this.pool = new pg.Pool({ ...config, max: CONNECTIONS, allowExitOnIdle: true });
    // An idle connection that breaks leaves the pool by itself; one in use tells whoever uses it.
    this.pool.on('error', () => {});
    this.pool.on('connect', (client) => client.on('error', () => {}));
    this.announcements = new Announcements(config, clock);
  }

  /**
   * Brings the database to the newest migration. Throws `setup_failed` when it does not exist, may not be used or was
   * written by a newer floe, and `store_unavailable` when it cannot be reached.
   */
  static async open(url: string, { clock }: { readonly clock: Clock }): Promise<PostgresStore> {
    const store = new PostgresStore(url, clock);
    try {
      await store.withSession((session) => migrate(session.client));
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
    const result = this.untilDone(mode, work);
    this.running.add(result);
    const done = (): void => void this.running.delete(result);
    result.then(done, done);
    return result;
  }

  private async untilDone<T>(mode: Mode, work: (tables: StoreTables) => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries++) {
      try {
        return await this.withSession((session) => runOnce(session, mode, work));
      } catch (thrown) {
        if (!isInTheWay(thrown) && !(thrown instanceof WorkAgain)) throw thrown;
        if (tries < MAX_TRIES) continue;
        if (thrown instanceof WorkAgain) throw unavailable('other transactions were in the way each time', thrown);
        throw asStoreError(thrown);
      }
    }
  }

  /** Lends a connection. What failed for the server's sake is thrown as `store_unavailable`, and the connection is not used again. */
  private async withSession<T>(use: (session: Session) => Promise<T>): Promise<T> {
    let client: pg.PoolClient;
    try {
      client = await this.pool.connect();
    } catch (thrown) {
      throw asStoreError(asDriverError(thrown));
    }
    try {
      const value = await use(this.sessionOf(client));
      client.release();
      return value;
    } catch (thrown) {
      const error = isInTheWay(thrown) ? thrown : asStoreError(thrown);
      // A failed-over server says `read-only` on old connections for ever, so these are renewed too.
      client.release(error !== thrown || client.getTransactionStatus() !== 'I');
      throw error;
    }
  }

  private sessionOf(raw: pg.PoolClient): Session {
    const known = this.sessions.get(raw);
    if (known !== undefined) return known;
    const client = new BoundedClient(raw, this.clock, this.statementNames);
    const session: Session = { client, kysely: kyselyOver(client, () => session.begun), begun: Promise.resolve() };
    this.sessions.set(raw, session);
    return session;
  }
}

async function runOnce<T>(
  session: Session,
  { begin, flavor, writes }: Mode,
  work: (tables: StoreTables) => Promise<T>,
): Promise<T> {
  const { client } = session;
  session.begun = client.run(begin);
  // Whoever needs the transaction waits for it, and hears of its failure; nobody may have come to that when it fails.
  session.begun.catch(() => {});
  let value: T;
  try {
    value = await work(tablesOver(session.kysely, flavor));
    await session.begun;
  } catch (thrown) {
    // When even this fails the connection is thrown away, and the transaction with it.
    await client.run('rollback').catch(() => {});
    throw thrown;
  }
  const ended = client.run('commit');
  if (!writes) {
    // All has been read. When the connection breaks now, its next user is told.
    ended.catch(() => {});
    return value;
  }
  // The server answers a commit after a failed statement with a rollback, and no error.
  if ((await ended).command !== 'COMMIT') {
    throw new Error('work went on after a statement that failed, so nothing was committed');
  }
  return value;
}
