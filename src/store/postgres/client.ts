import pg from 'pg';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { asDriverError } from './failures.ts';

/** A server that has not answered a new connection by then is down, hung or out of reach. Also how long a caller waits for a free one. */
const CONNECT_TIMEOUT_MS = 5_000;

/** The server ends a statement that takes longer, waiting for locks included: statements take milliseconds. */
const STATEMENT_TIMEOUT_MS = 10_000;

/** When even that does not come, the server is hung, and the connection is given up. */
const ANSWER_TIMEOUT_MS = STATEMENT_TIMEOUT_MS + 2_000;

/** A transaction whose server of ours stands still in the middle of it (SIGSTOP, a lost host) lets go of its locks after that long. */
const IDLE_IN_TRANSACTION_MS = 5_000;

/** When a silent connection is first probed. Routers forget silent ones after minutes. */
const KEEPALIVE_MS = 10_000;

/** Distinct statements are about a hundred; what comes beyond is not prepared. */
const PREPARED_LIMIT = 300;

/**
 * Settings of every connection. Plans are kept and tables start empty, so a plan must not be one that suits only a small
 * table: rows are reached by index. Statements are too short for compiling them to pay. A peer that vanished holds its locks no
 * longer than half a minute.
 */
const SETTINGS = {
  enable_seqscan: 'off',
  jit: 'off',
  tcp_keepalives_idle: '10',
  tcp_keepalives_interval: '5',
  tcp_keepalives_count: '4',
};

/** Numbers come as numbers: counts and sums stay far below 2^53. */
const NUMBER_TYPES: readonly number[] = [pg.types.builtins.INT8, pg.types.builtins.NUMERIC];

const TYPES = {
  getTypeParser(oid: number, format?: 'text' | 'binary') {
    return NUMBER_TYPES.includes(oid) ? Number : pg.types.getTypeParser(oid, format as 'text');
  },
};

/** How to connect. Throws `setup_failed` for a text that is no URL of PostgreSQL; the text, which may hold a password, is not repeated. */
export function clientConfig(url: string): pg.ClientConfig {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    throw badUrl('it is no URL');
  }
  if (parsed.protocol !== 'postgres:' && parsed.protocol !== 'postgresql:') throw badUrl('it is of another kind');
  const settings = Object.entries(SETTINGS).map(([name, value]) => `-c ${name}=${value}`);
  const theirs = parsed.searchParams.get('options');
  parsed.searchParams.set('options', [...settings, ...(theirs === null ? [] : [theirs])].join(' '));
  return {
    connectionString: parsed.href,
    application_name: parsed.searchParams.get('application_name') ?? 'floe',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    statement_timeout: STATEMENT_TIMEOUT_MS,
    idle_in_transaction_session_timeout: IDLE_IN_TRANSACTION_MS,
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEPALIVE_MS,
    // A transaction's first statement leaves together with its `begin`.
    pipeline: true,
    types: TYPES as pg.CustomTypesConfig,
  };
}

function badUrl(why: string): FloeError {
  return new FloeError('setup_failed', `the database is given as postgres://user:password@host:port/name, and ${why}`);
}

/** `host:port/name`: what may be shown of a URL. */
export function shownDatabase(url: string): string {
  const { host, pathname } = new URL(url);
  return `${host}${pathname}`;
}

export type StatementResult = { readonly rows: unknown[]; readonly command: string; readonly rowCount: number | null };

/** Runs statements on one connection, and gives the connection up when an answer does not come. */
export class BoundedClient {
  readonly raw: pg.ClientBase & Pick<pg.Client, 'connection'>;
  private readonly clock: Clock;
  private readonly names: Map<string, string>;

  /** `names` are those of prepared statements, shared by all connections to one database. */
  constructor(raw: pg.ClientBase, clock: Clock, names: Map<string, string>) {
    this.raw = raw as BoundedClient['raw'];
    this.clock = clock;
    this.names = names;
  }

  /**
   * Statements that are run in one turn of the event loop leave in one packet. Throws `store_unavailable` when the connection
   * breaks, and the server's refusals as they are.
   */
  run(text: string, values: readonly unknown[] = []): Promise<StatementResult> {
    this.holdPackets();
    return this.bounded(ANSWER_TIMEOUT_MS, this.raw.query({ ...this.nameOf(text), text, values: values as unknown[] }));
  }

  /** Runs several statements that have no parameters, and may take longer than those that run all the time. */
  async runScript(text: string, timeoutMs: number): Promise<void> {
    await this.bounded(timeoutMs, this.raw.query(text));
  }

  private async bounded<T>(timeoutMs: number, answer: Promise<T>): Promise<T> {
    const cancelTimer = this.clock.schedule(timeoutMs, () => {
      this.raw.connection.stream.destroy(new Error(`no answer within ${timeoutMs} ms`));
    });
    try {
      return await answer;
    } catch (thrown) {
      throw asDriverError(thrown);
    } finally {
      cancelTimer();
    }
  }

  private holdPackets(): void {
    const { stream } = this.raw.connection;
    if (stream.writableCorked > 0) return;
    stream.cork();
    process.nextTick(() => stream.uncork());
  }

  private nameOf(text: string): { name: string } | undefined {
    const known = this.names.get(text);
    if (known !== undefined) return { name: known };
    if (this.names.size >= PREPARED_LIMIT) return undefined;
    const name = `floe_${this.names.size}`;
    this.names.set(text, name);
    return { name };
  }
}
