import {
  type Clock,
  ERROR_TABLE,
  type ErrorCode,
  FloeError,
  type LinkedAbort,
  linkAbort,
  MIB,
  parseJson,
  type RandomSource,
  readPem,
  systemClock,
  systemRandom,
} from '@floe-rl/core';
import { type HttpPool, httpPool, openHttpPath, quotedReply } from '@floe-rl/core/http';
import { errorReplySchema } from '@floe-rl/core/schema';
import { buildConnector } from 'undici';
import { RetryBudget } from './retry-budget.ts';
import { type ServerAddress, ServerList } from './server-list.ts';

/**
 * Default time limit of a reply, ms. It is longer than any reply takes. For a request that the server is asked to hold (`waitSeconds`), the
 * hold time is added.
 */
const REPLY_TIMEOUT_MS = 30_000;

/**
 * Longest time that opening a connection may take, ms. A replica that cannot be connected to within this time counts as down, and the next
 * replica is called.
 */
const CONNECT_TIMEOUT_MS = 5_000;
/** Maximum size of an error reply in bytes. Replies with results have no limit. */
const MAX_ERROR_BYTES = 16 * MIB;

/** Paths of the client's PEM files. They are read for every new connection, so that renewed files are used without a restart. */
export type ClientTlsFiles = {
  /** File with the authorities that may sign the server's certificate. It replaces the authorities that Node.js trusts. */
  readonly ca?: string | null | undefined;
  /** File with the client's own certificate, for servers that require one. */
  readonly cert?: string | null | undefined;
  readonly key?: string | null | undefined;
};

export type ConnectionOptions = {
  /**
   * Address of the rollout server: `http://host:port`, followed by a path when a proxy serves the API below that path. For several
   * replicas: comma-separated URLs, or the `file:` URL of a folder with one file per replica that contains its URL.
   */
  readonly url: string;
  readonly token?: string | null | undefined;
  /** PEM files for https. By default, the authorities that Node.js trusts are used, including the file in `NODE_EXTRA_CA_CERTS`. */
  readonly tls?: ClientTlsFiles | undefined;
  /**
   * How long a call is retried, with growing pauses, after a transient failure: the server restarts, its store is unavailable, or a
   * limit of the server is reached (status 429). The default is 0: calls are not retried.
   */
  readonly retrySeconds?: number | undefined;
  /** Called before each pause of a retry, with the failure. Must not throw. */
  readonly onRetry?: ((failure: FloeError) => void) | undefined;
  readonly clock?: Clock | undefined;
  /** Random source that varies the pauses between retries. */
  readonly random?: RandomSource | undefined;
};

export type Query = Readonly<Record<string, string | number | boolean | undefined>>;

export type CallOptions = {
  readonly query?: Query;
  /** Body of the request, which is sent as JSON. */
  readonly body?: unknown;
  readonly bytes?: { readonly type: string; readonly data: Buffer };
  readonly accept?: string;
  readonly signal?: AbortSignal | undefined;
  /** How long the server is asked to hold the request until there is something to return, in seconds. */
  readonly waitSeconds?: number | undefined;
  /** Longest wait for the reply in seconds, in addition to `waitSeconds`. Default: {@link REPLY_TIMEOUT_MS}. */
  readonly replySeconds?: number | undefined;
};

/**
 * Options of a call whose reply is read as a stream. `limit` selects the part of the reply that the time limit covers. `reply`: the whole
 * reply (default). `chunk`: the headers, and then each wait for a chunk separately. `head`: the headers only.
 */
type StreamOptions = CallOptions & { readonly limit?: 'reply' | 'chunk' | 'head' };

/**
 * Makes HTTP calls to the rollout server, with typed errors and without hidden timeouts. A call that one replica cannot serve is sent to
 * each other replica once. Beyond that, calls are retried only with `retrySeconds`.
 */
export class Connection {
  private readonly pools = new Map<string, HttpPool>();
  private readonly servers: ServerList;
  private readonly closing = new AbortController();
  private readonly token: string | null;
  private readonly clock: Clock;
  private readonly random: RandomSource;
  private readonly retryMs: number;
  private readonly onRetry: ((failure: FloeError) => void) | undefined;
  private readonly connect: buildConnector.connector;

  /** Throws `bad_request` for an invalid URL and `setup_failed` for a TLS file that cannot be read. */
  constructor(options: ConnectionOptions) {
    this.servers = new ServerList(options.url);
    this.token = options.token ?? null;
    this.clock = options.clock ?? systemClock;
    this.random = options.random ?? systemRandom;
    this.retryMs = (options.retrySeconds ?? 0) * 1000;
    this.onRetry = options.onRetry;
    this.connect = connectorFor(options.tls, CONNECT_TIMEOUT_MS);
  }

  /** Creates the retry budget for one call, or for a sequence of calls that retry within one time limit. */
  retryBudget(): RetryBudget {
    return new RetryBudget(this.clock, this.retryMs, this.closing.signal, this.random, this.onRetry);
  }

  /** Number of replicas to which a call can be sent. */
  get replicaCount(): number {
    return this.servers.size;
  }

  /** Makes a call and resolves with the JSON of the reply. Throws the server's error as a FloeError, or `peer_unreachable`. */
  async json(method: 'GET' | 'POST' | 'DELETE', path: string, options: CallOptions = {}): Promise<unknown> {
    return parseJson(await this.collect(method, path, options));
  }

  async bytes(path: string, options: CallOptions = {}): Promise<Buffer> {
    return this.collect('GET', path, options);
  }

  private async collect(method: 'GET' | 'POST' | 'DELETE', path: string, options: CallOptions): Promise<Buffer> {
    const budget = this.retryBudget();
    for (;;) {
      try {
        const chunks: Buffer[] = [];
        for await (const chunk of this.stream(method, path, options)) chunks.push(chunk);
        return Buffer.concat(chunks);
      } catch (thrown) {
        await budget.waitAfter(thrown, options.signal);
      }
    }
  }

  /**
   * Yields the bytes of the reply as they arrive. A caller that stops iterating early ends the request. Once bytes have arrived, no other
   * replica is called.
   */
  async *stream(method: 'GET' | 'POST' | 'DELETE', path: string, options: StreamOptions = {}): AsyncGenerator<Buffer> {
    for (let attempt = 1; ; attempt++) {
      const server = this.servers.current();
      let hasBytes = false;
      try {
        for await (const chunk of this.send(server, method, path, options)) {
          hasBytes = true;
          yield chunk;
        }
        return;
      } catch (thrown) {
        // Only an error with status 503 leads to a call of another replica. It means that this replica cannot serve the call at present.
        // Every other error is thrown.
        if (this.closing.signal.aborted || options.signal?.aborted || !FloeError.is(thrown) || thrown.status !== 503)
          throw thrown;
        this.servers.moveOn(server);
        if (hasBytes || attempt >= this.servers.size) throw thrown;
      }
    }
  }

  /** Aborts every request that is still running, and closes all connections. */
  async close(): Promise<void> {
    this.closing.abort(new FloeError('peer_unreachable', 'the client was closed'));
    await Promise.all([...this.pools.values()].map((pool) => pool.destroy()));
  }

  private async *send(
    { origin, prefix }: ServerAddress,
    method: 'GET' | 'POST' | 'DELETE',
    path: string,
    options: StreamOptions,
  ): AsyncGenerator<Buffer> {
    const { replySeconds = REPLY_TIMEOUT_MS / 1000, waitSeconds = 0, limit = 'reply' } = options;
    const limitMs = (replySeconds + waitSeconds) * 1000;
    const aborted = linkAbort(options.signal);
    const startTimer = (): (() => void) => this.startTimer(aborted, origin, limitMs);
    const tooLarge = (): FloeError =>
      new FloeError('peer_unreachable', `${method} ${origin}${path}: its error reply exceeds ${MAX_ERROR_BYTES} bytes`);
    let cancelTimer = startTimer();
    try {
      const reply = await openHttpPath(this.poolOf(origin), `${prefix}${path}${queryText(options.query)}`, {
        method,
        headers: this.headers(options),
        body: options.bytes?.data ?? (options.body === undefined ? undefined : JSON.stringify(options.body)),
        signal: aborted.signal,
      });
      if (reply.status >= 400) throw errorOf(reply.status, await reply.read(MAX_ERROR_BYTES, tooLarge));
      if (limit !== 'reply') cancelTimer();
      const { chunks } = reply;
      yield* limit !== 'chunk'
        ? chunks
        : limitEachWait(chunks, () => {
            cancelTimer = startTimer();
            return cancelTimer;
          });
    } catch (thrown) {
      if (FloeError.is(thrown)) throw thrown;
      if (aborted.signal.aborted) throw aborted.signal.reason;
      const reason = thrown instanceof Error ? thrown.message || thrown.name : String(thrown);
      throw new FloeError('peer_unreachable', `${method} ${origin}${path}: ${reason}`, {}, thrown);
    } finally {
      cancelTimer();
      aborted.release();
    }
  }

  /** Aborts the request after `limitMs` milliseconds. Returns a function that cancels the timer. */
  private startTimer(request: LinkedAbort, origin: string, limitMs: number): () => void {
    return this.clock.schedule(limitMs, () =>
      request.abort(new FloeError('peer_unreachable', `${origin} did not reply within ${limitMs} ms`)),
    );
  }

  private poolOf(origin: string): HttpPool {
    const known = this.pools.get(origin);
    if (known !== undefined) return known;
    const pool = httpPool(origin, { connect: this.connect });
    this.pools.set(origin, pool);
    return pool;
  }

  private headers(options: CallOptions): Record<string, string> {
    const type = options.bytes?.type ?? (options.body === undefined ? null : 'application/json');
    return {
      accept: options.accept ?? 'application/json',
      ...(type === null ? {} : { 'content-type': type }),
      ...(this.token === null ? {} : { authorization: `Bearer ${this.token}` }),
    };
  }
}

/**
 * Limits each wait for a chunk of a reply. The timer does not run while the caller handles a chunk. `startTimer` returns a function that
 * stops the timer.
 */
async function* limitEachWait(chunks: AsyncIterable<Buffer>, startTimer: () => () => void): AsyncGenerator<Buffer> {
  const iterator = chunks[Symbol.asyncIterator]();
  try {
    for (;;) {
      const stopTimer = startTimer();
      const next = await iterator.next().finally(stopTimer);
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    await iterator.return?.();
  }
}

const NEWLINE = 0x0a;

/** Splits bytes into lines without their newline. Bytes after the last newline are dropped, because they are an incomplete line. */
export async function* linesOf(chunks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  let pieces: Buffer[] = [];
  for await (const chunk of chunks) {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      pieces.push(chunk.subarray(start, end));
      yield Buffer.concat(pieces).toString('utf8');
      pieces = [];
      start = end + 1;
    }
    if (start < chunk.length) pieces.push(chunk.subarray(start));
  }
}

/** Returns a function that opens connections with the certificates in `files`. Throws `setup_failed` when a file cannot be read. */
function connectorFor(files: ClientTlsFiles | undefined, timeoutMs: number): buildConnector.connector {
  const build = (): buildConnector.connector => buildConnector({ timeout: timeoutMs, ...readFiles(files ?? {}) });
  const first = build();
  if (files === undefined) return first;
  return (options, callback) => {
    let connect: buildConnector.connector;
    try {
      connect = build();
    } catch (thrown) {
      callback(thrown as Error, null);
      return;
    }
    connect(options, callback);
  };
}

function readFiles({ ca, cert, key }: ClientTlsFiles): { ca?: Buffer; cert?: Buffer; key?: Buffer } {
  return {
    ...(ca == null ? {} : { ca: readPem(ca) }),
    ...(cert == null ? {} : { cert: readPem(cert) }),
    ...(key == null ? {} : { key: readPem(key) }),
  };
}

function queryText(query: Query = {}): string {
  const given = Object.entries(query).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]]));
  return given.length === 0 ? '' : `?${new URLSearchParams(given as [string, string][])}`;
}

/**
 * Returns the error that the server sent. When an HTTP proxy before the server replied instead, returns an error that matches the status.
 */
function errorOf(status: number, body: Buffer): FloeError {
  let value: unknown = null;
  try {
    value = parseJson(body);
  } catch (thrown) {
    if (!FloeError.is(thrown)) throw thrown;
  }
  const parsed = errorReplySchema.safeParse(value);
  if (parsed.success && parsed.data.error.code in ERROR_TABLE) {
    const { code, message, details } = parsed.data.error;
    return new FloeError(code as ErrorCode, message, details);
  }
  const isTransientStatus = status >= 500 || status === 429 || status === 408;
  const code: ErrorCode = isTransientStatus ? 'peer_unreachable' : status === 404 ? 'not_found' : 'bad_request';
  return new FloeError(code, `the server replied with ${quotedReply(status, body.toString('utf8'))}`, { status });
}
