import { type buildConnector, Pool } from 'undici';
import { type Clock, systemClock } from '../core/clock.ts';
import { ERROR_TABLE, type ErrorCode, FloeError } from '../core/errors.ts';
import { parseJson } from '../core/parse.ts';
import { errorReplySchema } from '../schema/index.ts';
import { type ClientTlsFiles, connectorFor } from './client-tls.ts';
import { Patience } from './patience.ts';
import { type ServerAddress, ServerList } from './server-list.ts';

/** Longer than any answer takes that is not held on purpose; waits are added to it. */
const ANSWER_TIMEOUT_MS = 30_000;

export type ConnectionOptions = {
  /**
   * Of the rollout server, `http://host:port`, with a path when it is behind one. Several replicas: URLs with commas between
   * them, or a `file:` URL of a folder that holds a file with the URL of each.
   */
  readonly url: string;
  readonly token?: string | null | undefined;
  /** For https. Default: the authorities that Node knows, those of `NODE_EXTRA_CA_CERTS` among them. */
  readonly tls?: ClientTlsFiles | undefined;
  /**
   * A call that fails for a reason that may pass (the server restarts, its store is away, a limit is reached) is repeated with
   * growing pauses for this long. Default 0: never.
   */
  readonly retrySeconds?: number | undefined;
  readonly clock?: Clock | undefined;
};

export type Query = Readonly<Record<string, string | number | boolean | undefined>>;

export type CallOptions = {
  readonly query?: Query;
  /** Sent as JSON. */
  readonly body?: unknown;
  readonly bytes?: { readonly type: string; readonly data: Buffer };
  readonly accept?: string;
  readonly signal?: AbortSignal | undefined;
  /** How long the server was asked to hold the request. */
  readonly waitSeconds?: number | undefined;
  /** How long the answer may take beyond that. Default: {@link ANSWER_TIMEOUT_MS}. */
  readonly answerSeconds?: number | undefined;
};

/** Whether the time limit is for the whole answer, for its head and each piece that is waited for, or for its head alone. */
type StreamOptions = CallOptions & { readonly limit?: 'whole' | 'each piece' | 'head' };

/** A host that takes no connection within this time is down; the next replica is asked. */
const CONNECT_TIMEOUT_MS = 5_000;

/**
 * HTTP to the rollout server: typed errors, no hidden timeouts. A call that one replica does not take goes to the next, once
 * round; beyond that nothing is repeated without `retrySeconds`.
 */
export class Connection {
  private readonly pools = new Map<string, Pool>();
  private readonly servers: ServerList;
  private readonly ending = new AbortController();
  private readonly token: string | null;
  private readonly clock: Clock;
  private readonly retryMs: number;
  private readonly connect: buildConnector.connector;

  /** Throws `bad_request` when the URL is none, and `setup_failed` for a TLS file that cannot be read. */
  constructor(options: ConnectionOptions) {
    this.servers = new ServerList(options.url);
    this.token = options.token ?? null;
    this.clock = options.clock ?? systemClock;
    this.retryMs = (options.retrySeconds ?? 0) * 1000;
    this.connect = connectorFor(options.tls, CONNECT_TIMEOUT_MS);
  }

  /** For one call, or for one that goes on over many. */
  patience(): Patience {
    return new Patience(this.clock, this.retryMs, this.ending.signal);
  }

  /** How many replicas a call may be tried at. */
  get replicas(): number {
    return this.servers.size;
  }

  /** Resolves to the reply's JSON. Throws the server's error as a FloeError, or `peer_unreachable`. */
  async json(method: 'GET' | 'POST' | 'DELETE', path: string, options: CallOptions = {}): Promise<unknown> {
    return parseJson(await this.whole(method, path, options));
  }

  async bytes(path: string, options: CallOptions = {}): Promise<Buffer> {
    return this.whole('GET', path, options);
  }

  private async whole(method: 'GET' | 'POST' | 'DELETE', path: string, options: CallOptions): Promise<Buffer> {
    const patience = this.patience();
    for (;;) {
      try {
        const chunks: Buffer[] = [];
        for await (const chunk of this.stream(method, path, options)) chunks.push(chunk);
        return Buffer.concat(chunks);
      } catch (thrown) {
        await patience.afterFailure(thrown, options.signal);
      }
    }
  }

  /** The reply's bytes as they arrive. Leaving the loop early ends the request. Repeated at no replica once begun. */
  async *stream(method: 'GET' | 'POST' | 'DELETE', path: string, options: StreamOptions = {}): AsyncGenerator<Buffer> {
    for (let tries = 1; ; tries++) {
      const server = this.servers.current();
      let begun = false;
      try {
        for await (const chunk of this.request(server, method, path, options)) {
          begun = true;
          yield chunk;
        }
        return;
      } catch (thrown) {
        // Another replica may be able to do what this one cannot now.
        if (this.ending.signal.aborted || options.signal?.aborted || !FloeError.is(thrown) || thrown.status !== 503)
          throw thrown;
        this.servers.moveOn(server);
        if (begun || tries >= this.servers.size) throw thrown;
      }
    }
  }

  /** Ends every request that is still running. */
  async close(): Promise<void> {
    this.ending.abort(new FloeError('peer_unreachable', 'the client was closed'));
    await Promise.all([...this.pools.values()].map((pool) => pool.destroy()));
  }

  private async *request(
    { origin, prefix }: ServerAddress,
    method: 'GET' | 'POST' | 'DELETE',
    path: string,
    options: StreamOptions,
  ): AsyncGenerator<Buffer> {
    const controller = new AbortController();
    const { signal } = options;
    const forward = (): void => controller.abort(signal?.reason);
    if (signal?.aborted) forward();
    signal?.addEventListener('abort', forward, { once: true });
    const { answerSeconds = ANSWER_TIMEOUT_MS / 1000, waitSeconds = 0 } = options;
    const limitMs = (answerSeconds + waitSeconds) * 1000;
    const arm = (): (() => void) =>
      this.clock.schedule(limitMs, () =>
        controller.abort(new FloeError('peer_unreachable', `${origin} did not answer within ${limitMs} ms`)),
      );
    let cancelTimer = arm();
    try {
      const reply = await this.poolOf(origin).request({
        method,
        path: `${prefix}${path}${queryText(options.query)}`,
        headers: this.headers(options),
        body: options.bytes?.data ?? (options.body === undefined ? null : JSON.stringify(options.body)),
        signal: controller.signal,
      });
      if (reply.statusCode >= 400) throw errorOf(reply.statusCode, Buffer.from(await reply.body.arrayBuffer()));
      const { limit = 'whole' } = options;
      if (limit !== 'whole') cancelTimer();
      const pieces: AsyncIterable<Buffer> = reply.body;
      yield* limit !== 'each piece'
        ? pieces
        : eachInTime(pieces, () => {
            cancelTimer = arm();
            return cancelTimer;
          });
    } catch (thrown) {
      if (FloeError.is(thrown)) throw thrown;
      if (controller.signal.aborted) throw controller.signal.reason;
      const reason = thrown instanceof Error ? thrown.message || thrown.name : String(thrown);
      throw new FloeError('peer_unreachable', `${method} ${origin}${path}: ${reason}`, {}, thrown);
    } finally {
      cancelTimer();
      signal?.removeEventListener('abort', forward);
    }
  }

  private poolOf(origin: string): Pool {
    const known = this.pools.get(origin);
    if (known !== undefined) return known;
    const pool = new Pool(origin, { headersTimeout: 0, bodyTimeout: 0, connect: this.connect });
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

/** `arm` starts a time limit whenever a piece is waited for, and returns its end: what the caller does between two is free. */
async function* eachInTime(pieces: AsyncIterable<Buffer>, arm: () => () => void): AsyncGenerator<Buffer> {
  const iterator = pieces[Symbol.asyncIterator]();
  try {
    for (;;) {
      const disarm = arm();
      const next = await iterator.next().finally(disarm);
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    await iterator.return?.();
  }
}

function queryText(query: Query = {}): string {
  const given = Object.entries(query).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]]));
  return given.length === 0 ? '' : `?${new URLSearchParams(given as [string, string][])}`;
}

/** The server's own error; or, from something in between that does not speak floe, one by status. */
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
  const excerpt = body.toString('utf8', 0, 200);
  const mayPass = status >= 500 || status === 429 || status === 408;
  const code: ErrorCode = mayPass ? 'peer_unreachable' : status === 404 ? 'not_found' : 'bad_request';
  return new FloeError(code, `answered with status ${status}: ${excerpt}`, { status });
}
