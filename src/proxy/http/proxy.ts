import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Clock } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { CallContext, Dialect, RouteKind } from '../../dialects/dialect.ts';
import { matchRoute } from '../../dialects/registry.ts';
import type { EngineNotice } from '../../engines/engine.ts';
import type { EnginePool } from '../../engines/pool.ts';
import type { CompletionJournal } from '../journal/journal.ts';
import { Suffixes } from '../prompt/suffix-renderer.ts';
import { ABANDON_GRACE_MS } from '../session/call.ts';
import { digestOf } from '../session/engine-request.ts';
import { KeyRing, keyOf } from '../session/keys.ts';
import type { CallObserver } from '../session/observer.ts';
import { type ProxySession, type ProxySessionSpec, SessionCalls } from '../session/session.ts';
import { parseBody, readBody } from './body.ts';
import { deliver, sendError, sendJson } from './delivery.ts';
import { decodeBody } from './encoding.ts';
import { MAX_HEADERS, parseTarget, refuseOddFraming } from './framing.ts';
import { HEARTBEAT_MS } from './reply-writer.ts';
import { publishRequest } from './request-channel.ts';
import { onceGone } from './responses.ts';
import { dialectOf, kindOf, noRoute } from './routes.ts';
import { SessionSocket } from './session-socket.ts';
import { endAfterUnread } from './unread.ts';
import { refuseUpgrade } from './upgrade.ts';

/** A client that has not sent its headers by then is holding a connection open on purpose. */
const HEADERS_TIMEOUT_MS = 10_000;
/** How often Node looks for such clients. */
const TIMEOUT_CHECK_MS = 5_000;
/** Longer than a harness thinks between two calls, so that most calls find their connection open. */
const KEEP_ALIVE_MS = 65_000;
/** What a session's last responses get to leave before their connections are cut. */
const CLOSE_GRACE_MS = 1_000;

export type ProxyDeps = {
  readonly engines: EnginePool;
  readonly journal: CompletionJournal;
  readonly clock: Clock;
  /** Where it tells what an operator should know of the engines; default: nowhere. */
  readonly notice?: EngineNotice;
  /** Hears of every model call that has ended; default: nobody. */
  readonly observer?: CallObserver;
  /** Between two heartbeats of a waiting stream; default {@link HEARTBEAT_MS}. */
  readonly heartbeatMs?: number;
  /** How long an engine call outlives its client; default {@link ABANDON_GRACE_MS}. */
  readonly abandonGraceMs?: number;
};

/** The HTTP face that harnesses call. */
export interface ModelProxy {
  /** `http://host:port` of the TCP listener. Throws `not_ready` before `listen`. */
  readonly origin: string;
  /** Port 0 takes a free one. Rejects with `setup_failed`. */
  listen(address: { readonly host: string; readonly port: number }): Promise<void>;
  /** What the engines of the pool have room for; null when one does not tell. */
  maxModelLen(pool: string): number | null;
  /** Accepts the session's key from now on. Rejects with `conflict` for a key that was ever used, `setup_failed` without a socket. */
  open(spec: ProxySessionSpec): Promise<ProxySession>;
  /** Closes every session, then the listener. May be called twice. */
  close(): Promise<void>;
}

export function createProxy(deps: ProxyDeps): ModelProxy {
  return new HttpProxy(deps);
}

type OpenSession = {
  readonly calls: SessionCalls;
  readonly socket: SessionSocket | null;
  readonly responses: Set<ServerResponse>;
  close(): Promise<void>;
};

class HttpProxy implements ModelProxy {
  private readonly deps: ProxyDeps;
  private readonly server: Server;
  private readonly suffixes: Suffixes;
  private readonly keys = new KeyRing<OpenSession>();
  private readonly sessions = new Set<OpenSession>();
  /** Connections that came in through a session's own socket. */
  private readonly bound = new WeakMap<Socket, OpenSession>();

  constructor(deps: ProxyDeps) {
    this.deps = deps;
    this.suffixes = new Suffixes(deps.engines, deps.notice ?? (() => {}));
    this.server = createServer(
      {
        headersTimeout: HEADERS_TIMEOUT_MS,
        connectionsCheckingInterval: TIMEOUT_CHECK_MS,
        keepAliveTimeout: KEEP_ALIVE_MS,
      },
      (request, response) => void this.handle(request, response),
    );
    // One more than is accepted: beyond its own limit Node drops headers silently.
    this.server.maxHeadersCount = MAX_HEADERS + 1;
    // Without a listener Node answers an upgrade request as if it were an ordinary one.
    this.server.on('upgrade', refuseUpgrade);
  }

  get origin(): string {
    const address = this.server.address() as AddressInfo | null;
    if (address === null) throw new FloeError('not_ready', 'the proxy does not listen');
    const host = address.family === 'IPv6' ? `[${address.address}]` : address.address;
    return `http://${host}:${address.port}`;
  }

  listen(address: { readonly host: string; readonly port: number }): Promise<void> {
    return new Promise((resolve, reject) => {
      const refuse = (cause: Error): void => {
        const where = `${address.host}:${address.port}`;
        reject(new FloeError('setup_failed', `the proxy cannot listen on ${where}: ${cause.message}`, {}, cause));
      };
      this.server.once('error', refuse);
      this.server.listen(address.port, address.host, () => {
        this.server.off('error', refuse);
        resolve();
      });
    });
  }

  maxModelLen(pool: string): number | null {
    return this.deps.engines.maxModelLen(pool);
  }

  async open(spec: ProxySessionSpec): Promise<ProxySession> {
    const { clock, engines, journal, observer, abandonGraceMs = ABANDON_GRACE_MS } = this.deps;
    const { suffixes } = this;
    const calls = new SessionCalls(spec, { clock, engines, journal, observer, abandonGraceMs, suffixes });
    const socket = spec.socketPath === null ? null : new SessionSocket(spec.socketPath);
    let closing: Promise<void> | null = null;
    const session: OpenSession = {
      calls,
      socket,
      responses: new Set(),
      close: () => {
        closing ??= this.closeSession(session);
        return closing;
      },
    };
    this.keys.add(spec.key, session);
    try {
      await socket?.listen((connection) => {
        this.bound.set(connection, session);
        this.server.emit('connection', connection);
      });
    } catch (error) {
      this.keys.forget(spec.key);
      throw error;
    }
    this.sessions.add(session);
    return {
      sessionId: spec.sessionId,
      attempt: spec.attempt,
      completions: () => calls.completions(),
      get turns() {
        return calls.turns;
      },
      get sampledTokens() {
        return calls.sampledTokens;
      },
      get requests() {
        return calls.requests;
      },
      get lastError() {
        return calls.lastError;
      },
      get runningCalls() {
        return calls.runningCalls;
      },
      close: session.close,
    };
  }

  async close(): Promise<void> {
    await Promise.all([...this.sessions].map((session) => session.close()));
    if (!this.server.listening) return;
    const closed = new Promise<void>((resolve) => {
      this.server.close(() => resolve());
    });
    this.server.closeAllConnections();
    await closed;
  }

  private async closeSession(session: OpenSession): Promise<void> {
    this.keys.close(session.calls.spec.key);
    await session.calls.close();
    await this.lastResponses(session);
    for (const response of session.responses) response.destroy();
    await session.socket?.close();
    this.sessions.delete(session);
  }

  /** Resolves when the session's responses have left, or after {@link CLOSE_GRACE_MS}. */
  private lastResponses(session: OpenSession): Promise<void> {
    const open = [...session.responses];
    if (open.length === 0) return Promise.resolve();
    return new Promise((resolve) => {
      const cancel = this.deps.clock.schedule(CLOSE_GRACE_MS, resolve);
      let left = open.length;
      for (const response of open) {
        response.once('close', () => {
          if (--left > 0) return;
          cancel();
          resolve();
        });
      }
    });
  }

  /** Never rejects: whatever goes wrong becomes an answer in the client's dialect. */
  private async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const method = request.method ?? '';
    let dialect = dialectOf(request);
    let session: OpenSession | null = null;
    let kind: RouteKind | null = null;
    const arrivedMs = this.deps.clock.monotonicMs();
    try {
      refuseOddFraming(request);
      const target = parseTarget(request.url ?? '');
      const match = matchRoute(method, target.path, request.headers);
      dialect = match.dialect;
      kind = kindOf(match, method);
      session = this.authenticate(request, keyOf(target, request.headers));
      const { calls, responses } = session;
      calls.requests++;
      responses.add(response);
      onceGone(response, () => responses.delete(response));
      const body = await this.bodyOf(request, kind, calls);
      publishRequest(request, target, calls.spec, dialect, body);
      if (kind === null) throw noRoute(match.found ? [] : match.allow, method, target.path, response);
      const { model, stream } = match.found ? match : { model: null, stream: null };
      const recorded = (id: string) => calls.handedOut(id);
      const context = { headers: request.headers, query: target.query, model, stream, recorded };
      await this.serve(kind, dialect, context, calls, body, response);
    } catch (thrown) {
      const error = asFloeError(thrown);
      // A refused side request neither hides why the last model call failed nor passes for one.
      if (kind === 'generate' || (kind === null && session?.calls.lastError === null)) session?.calls.failed(error);
      if (kind === 'generate') this.tellRefused(dialect, error, arrivedMs);
      if (!response.destroyed) this.refuse(request, response, dialect, error);
    }
  }

  /** A call that has begun tells of itself, and does not come to be refused. */
  private tellRefused({ name }: Dialect, { code }: FloeError, arrivedMs: number): void {
    const totalMs = this.deps.clock.monotonicMs() - arrivedMs;
    this.deps.observer?.({ dialect: name, engineId: null, code, totalMs, engineMs: null });
  }

  /** Empty for a request that is not expected to have one. */
  private async bodyOf(request: IncomingMessage, kind: RouteKind | null, { reading }: SessionCalls): Promise<Buffer> {
    if (kind !== 'generate' && kind !== 'count_tokens') return Buffer.alloc(0);
    const body = await readBody(request, this.deps.clock, reading);
    return decodeBody(body, request.headers['content-encoding'], reading);
  }

  private refuse(request: IncomingMessage, response: ServerResponse, dialect: Dialect, error: FloeError): void {
    if (request.complete) {
      sendError(response, dialect, error);
      return;
    }
    // The rest of a body that was not read would be taken for the next request.
    response.setHeader('connection', 'close');
    sendError(response, dialect, error, (_, bytes) => {
      response.write(bytes);
      endAfterUnread(request, response, this.deps.clock);
    });
  }

  private authenticate(request: IncomingMessage, key: string | null): OpenSession {
    const bound = this.bound.get(request.socket);
    const session = this.keys.find(key);
    if (bound !== undefined && bound !== session) {
      throw new FloeError('unauthorized', 'the session key does not belong to this socket');
    }
    return session;
  }

  private async serve(
    kind: RouteKind,
    dialect: Dialect,
    context: CallContext,
    calls: SessionCalls,
    body: Buffer,
    response: ServerResponse,
  ): Promise<void> {
    const { modelName, engine } = calls.spec;
    switch (kind) {
      case 'probe':
        response.writeHead(200, { 'content-length': 0 }).end();
        return;
      case 'models':
        sendJson(response, 200, dialect.encodeModels(modelName, this.maxModelLen(engine.pool)));
        return;
      case 'model':
        calls.refuseModel(context.model ?? '');
        sendJson(response, 200, dialect.encodeModel(context.model ?? '', this.maxModelLen(engine.pool)));
        return;
      case 'count_tokens': {
        const canonical = dialect.parseCount(parseBody(body), context);
        const tokens = await calls.countTokens(canonical, abortedByClose(response));
        sendJson(response, 200, dialect.encodeCount(tokens));
        return;
      }
      case 'generate': {
        calls.refuseWhenClosed();
        const digest = digestOf(dialect, context, body);
        const call =
          calls.findRepeat(digest) ?? calls.begin(digest, dialect, dialect.parseRequest(parseBody(body), context));
        await deliver(response, call, {
          clock: this.deps.clock,
          heartbeatMs: this.deps.heartbeatMs ?? HEARTBEAT_MS,
        });
      }
    }
  }
}

function abortedByClose(response: ServerResponse): AbortSignal {
  const controller = new AbortController();
  onceGone(response, () => controller.abort(new FloeError('cancelled', 'the client went away')));
  return controller.signal;
}
