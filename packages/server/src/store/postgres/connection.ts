import { type Clock, FloeError } from '@floe-rl/core';
import {
  type CompiledQuery,
  type DatabaseConnection,
  type Dialect,
  type Driver,
  Kysely,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
  type QueryResult,
} from 'kysely';
import pg from 'pg';
import { type Database, isAdHoc, type QueryBuilder } from '../sql/database.ts';
import { asDriverError } from './failures.ts';

/**
 * Maximum time in milliseconds to open a connection, and to wait for a free connection of the pool. A database server that takes longer is
 * down, hung or unreachable.
 */
const CONNECT_TIMEOUT_MS = 5_000;

/**
 * Maximum time in milliseconds of a statement, including its waits for locks. After this time, the database server aborts the statement.
 * Statements normally take milliseconds.
 */
const STATEMENT_TIMEOUT_MS = 10_000;

/**
 * Maximum time in milliseconds to wait for the response to a statement. If the database server has not even reported the abort of the
 * statement by then, it is hung, and the connection is closed.
 */
const ANSWER_TIMEOUT_MS = STATEMENT_TIMEOUT_MS + 2_000;

/**
 * Time in milliseconds after which PostgreSQL ends an idle transaction and releases its locks. A transaction is idle that long only when
 * the floe server was suspended or lost in the middle of it.
 */
const IDLE_IN_TRANSACTION_MS = 5_000;

/**
 * Time in milliseconds without traffic after which the first TCP keepalive probe is sent on a connection. Routers drop silent connections
 * after some minutes.
 */
const KEEPALIVE_MS = 10_000;

/**
 * Maximum number of prepared statements per database. There are about a hundred distinct statements; statements beyond this number are sent
 * unprepared.
 */
const MAX_PREPARED = 300;

/**
 * PostgreSQL settings of every connection. Sequential scans are disabled, because they suit only small tables. A plan that was prepared on a
 * small table would still be used when the table has grown. JIT compilation is disabled, because the statements are too short for it. The
 * keepalive settings make PostgreSQL release the locks of a lost client within half a minute.
 */
const SETTINGS = {
  enable_seqscan: 'off',
  jit: 'off',
  tcp_keepalives_idle: '10',
  tcp_keepalives_interval: '5',
  tcp_keepalives_count: '4',
};

/** Database types that are parsed as numbers instead of strings. This is safe, because counts and sums stay far below 2^53. */
const NUMBER_TYPES: readonly number[] = [pg.types.builtins.INT8, pg.types.builtins.NUMERIC];

const TYPES = {
  getTypeParser(oid: number, format?: 'text' | 'binary') {
    return NUMBER_TYPES.includes(oid) ? Number : pg.types.getTypeParser(oid, format as 'text');
  },
};

/**
 * Returns the connection settings for a PostgreSQL URL. Throws `setup_failed` for a text that is not such a URL. The error does not contain
 * the text, because the text may contain a password.
 */
export function clientConfig(url: string): pg.ClientConfig {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    throw badUrl('this is not a URL');
  }
  if (parsed.protocol !== 'postgres:' && parsed.protocol !== 'postgresql:') throw badUrl('this URL has another scheme');
  const settings = Object.entries(SETTINGS).map(([name, value]) => `-c ${name}=${value}`);
  const given = parsed.searchParams.get('options');
  parsed.searchParams.set('options', [...settings, ...(given === null ? [] : [given])].join(' '));
  return {
    connectionString: parsed.href,
    application_name: parsed.searchParams.get('application_name') ?? 'floe',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    statement_timeout: STATEMENT_TIMEOUT_MS,
    idle_in_transaction_session_timeout: IDLE_IN_TRANSACTION_MS,
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEPALIVE_MS,
    // With pipelining, the first statement of a transaction is sent together with its `begin`.
    pipeline: true,
    types: TYPES as pg.CustomTypesConfig,
  };
}

function badUrl(why: string): FloeError {
  return new FloeError('setup_failed', `the database must be given as postgres://user:password@host:port/name: ${why}`);
}

/** Returns the part `host:port/name` of a PostgreSQL URL, which contains no credentials and may be logged. */
export function shownDatabase(url: string): string {
  const { host, pathname } = new URL(url);
  return `${host}${pathname}`;
}

export type StatementResult = { readonly rows: unknown[]; readonly command: string; readonly rowCount: number | null };

/** Runs statements on one connection, and closes the connection when the database server does not respond in time. */
export class BoundedClient {
  readonly raw: pg.ClientBase & Pick<pg.Client, 'connection'>;
  private readonly clock: Clock;
  private readonly names: Map<string, string>;

  /** `names` maps the text of each prepared statement to its name. All connections to the same database share this map. */
  constructor(raw: pg.ClientBase, clock: Clock, names: Map<string, string>) {
    this.raw = raw as BoundedClient['raw'];
    this.clock = clock;
    this.names = names;
  }

  /**
   * Runs one statement. Statements that are started in the same turn of the event loop are sent in one packet. Throws `store_unavailable`
   * when the connection breaks; an error that the database server reports is thrown unchanged.
   */
  run(text: string, values: readonly unknown[] = []): Promise<StatementResult> {
    this.holdPackets();
    return this.withTimeout(
      ANSWER_TIMEOUT_MS,
      this.raw.query({ ...this.nameOf(text), text, values: values as unknown[] }),
    );
  }

  /** Runs several statements without parameters, in one query with the given time limit in milliseconds. */
  async runScript(text: string, timeoutMs: number): Promise<void> {
    await this.withTimeout(timeoutMs, this.raw.query(text));
  }

  private async withTimeout<T>(timeoutMs: number, answer: Promise<T>): Promise<T> {
    const cancelTimer = this.clock.schedule(timeoutMs, () => {
      this.raw.connection.stream.destroy(new Error(`the server did not respond within ${timeoutMs} ms`));
    });
    try {
      return await answer;
    } catch (thrown) {
      throw asDriverError(thrown);
    } finally {
      cancelTimer();
    }
  }

  /**
   * Holds packets back until the end of the current turn of the event loop, so that all statements that start in this turn are sent
   * together.
   */
  private holdPackets(): void {
    const { stream } = this.raw.connection;
    if (stream.writableCorked > 0) return;
    stream.cork();
    process.nextTick(() => stream.uncork());
  }

  private nameOf(text: string): { name: string } | undefined {
    const known = this.names.get(text);
    if (known !== undefined) return { name: known };
    if (this.names.size >= MAX_PREPARED || isAdHoc(text)) return undefined;
    const name = `floe_${this.names.size}`;
    this.names.set(text, name);
    return { name };
  }
}

const READS = /^\s*select\b/;

/**
 * Creates a kysely instance that uses one connection, which the caller has taken from the pool. `begun` resolves when the transaction has
 * begun. Statements that only read are sent without waiting for `begun`, which saves a round trip.
 */
export function kyselyOver(client: BoundedClient, begun: () => Promise<unknown>): QueryBuilder {
  const connection: DatabaseConnection = {
    async executeQuery<R>({ sql, parameters }: CompiledQuery): Promise<QueryResult<R>> {
      if (!READS.test(sql)) await begun();
      const { rows, rowCount } = await client.run(sql, parameters);
      return { rows: rows as R[], numAffectedRows: BigInt(rowCount ?? 0) };
    },
    streamQuery() {
      throw new Error('streaming of rows is not supported');
    },
  };
  const doNothing = async (): Promise<void> => {};
  const refuseTransaction = (): Promise<void> =>
    Promise.reject(new Error('only the store begins and ends transactions'));
  const driver: Driver = {
    init: doNothing,
    acquireConnection: async () => connection,
    releaseConnection: doNothing,
    beginTransaction: refuseTransaction,
    commitTransaction: refuseTransaction,
    rollbackTransaction: refuseTransaction,
    destroy: doNothing,
  };
  const dialect: Dialect = {
    createDriver: () => driver,
    createQueryCompiler: () => new PostgresQueryCompiler(),
    createAdapter: () => new PostgresAdapter(),
    createIntrospector: (db) => new PostgresIntrospector(db),
  };
  return new Kysely<Database>({ dialect });
}
