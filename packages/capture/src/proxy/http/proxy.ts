import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { asFloeError, type Clock, FloeError, listenError } from '@floe-rl/core';
import type { CallContext, Dialect, RouteKind } from '../../dialects/dialect.ts';
import { matchRoute, type RouteMatch } from '../../dialects/registry.ts';
import type { EngineNotice } from '../../engines/engine.ts';
import type { EnginePools } from '../../engines/pool/engine-pools.ts';
import { FairTurns } from '../fair-turns.ts';
import type { CompletionJournal } from '../journal/journal.ts';
import { SuffixRenderer } from '../prompt/suffix-renderer.ts';
import { ABANDON_GRACE_MS } from '../session/call.ts';
import type { CallObserver } from '../session/call-report.ts';
import { KeyRing } from '../session/keys.ts';
import { requestIdentity } from '../session/repeated-requests.ts';
import { refuseModel } from '../session/request-limits.ts';
import { ProxySession } from '../session/session.ts';
import type { ProxySessionSpec } from '../session/session-spec.ts';
import { parseBody, receiveBody } from './body.ts';
import { deliver, HEARTBEAT_MS } from './delivery.ts';
import { publishRequest } from './request-channel.ts';
import { endAfterDraining, onResponseClosed, sendError, sendJson } from './responses.ts';
import {
  guessedDialect,
  keyHeadersOf,
  MAX_HEADERS,
  parseTarget,
  refuseAmbiguousFraming,
  refuseExpectation,
  refuseUpgrade,
  routeKindOf,
  sessionKeyOf,
  unknownRoute,
} from './routes.ts';

/**
 * Longest time in milliseconds that a client may take to send its headers. It bounds how long an idle client can hold a connection open.
 */
const HEADERS_TIMEOUT_MS = 10_000;
/** Interval in milliseconds at which Node checks {@link HEADERS_TIMEOUT_MS}. */
const TIMEOUT_CHECK_MS = 5_000;
/**
 * Time in milliseconds for which an idle connection is kept open. It is longer than the pause between two model calls of most harnesses, so
 * that most calls reuse their connection.
 */
const KEEP_ALIVE_MS = 65_000;

const LISTEN_OPTIONS = { host: '--proxy-host', port: '--proxy-port' };

export type ProxyDeps = {
  readonly engines: EnginePools;
  readonly journal: CompletionJournal;
  readonly clock: Clock;
  /** Receives notices about engines that are intended for the operator. By default, these notices are dropped. */
  readonly notice?: EngineNotice;
  /** Optional callback that is called once for every model call that has ended. */
  readonly observer?: CallObserver;
  /** Interval in milliseconds after which a stream without deltas sends a heartbeat. Default: {@link HEARTBEAT_MS}. */
  readonly heartbeatMs?: number;
  /** Time in milliseconds for which a model call continues when no client waits for it. Default: {@link ABANDON_GRACE_MS}. */
  readonly abandonGraceMs?: number;
};

/** The HTTP server that harnesses use as their model endpoint. */
export interface ModelProxy {
  /** Address of the TCP listener, as `http://host:port`. Reading it before `listen` was called throws `not_ready`. */
  readonly origin: string;
  /**
   * Starts the TCP listener. Port 0 selects a free port. Rejects with `setup_failed` when it cannot listen on the address.
   */
  listen(address: { readonly host: string; readonly port: number }): Promise<void>;
  /**
   * Returns the context window in tokens that all engines of the pool support; `null` when one of these engines does not report its window.
   */
  maxModelLen(pool: string): number | null;
  /**
   * Starts to accept requests with the session's key. Rejects with `conflict` for a key that was used before, and with `setup_failed` when
   * the session's socket cannot be created.
   */
  open(spec: ProxySessionSpec): Promise<ProxySession>;
  /** Closes every session, then the listener. May be called more than once. */
  close(): Promise<void>;
}

export function createProxy(deps: ProxyDeps): ModelProxy {
  return new HttpProxy(deps);
}

class HttpProxy implements ModelProxy {
  private readonly deps: ProxyDeps;
  private readonly server: Server;
  private readonly suffixes: SuffixRenderer;
  private readonly keys = new KeyRing<ProxySession>();
  /** The turns of the sessions at parsing a request and starting its work. */
  private readonly turns: FairTurns;
  private readonly sessions = new Set<ProxySession>();
  /** Maps each connection that was accepted on a session's Unix socket to that session. */
  private readonly sessionOfSocket = new WeakMap<Socket, ProxySession>();

  constructor(deps: ProxyDeps) {
    this.deps = deps;
    this.turns = new FairTurns(deps.clock);
    this.suffixes = new SuffixRenderer(deps.engines, deps.notice ?? (() => {}));
    this.server = createServer(
      {
        headersTimeout: HEADERS_TIMEOUT_MS,
        // Node's own refusal of a request without Host has no body, so `refuseAmbiguousFraming` refuses it.
        requireHostHeader: false,
        connectionsCheckingInterval: TIMEOUT_CHECK_MS,
        keepAliveTimeout: KEEP_ALIVE_MS,
      },
      (request, response) => void this.handle(request, response),
    );
    // Node silently drops headers beyond this limit. The limit is one more than the proxy accepts, so that the proxy notices and refuses a
    // request with too many headers.
    this.server.maxHeadersCount = MAX_HEADERS + 1;
    // Without a listener for this event, Node would treat an upgrade request as an ordinary request.
    this.server.on('upgrade', refuseUpgrade);
    this.server.on('checkExpectation', refuseExpectation);
  }

  get origin(): string {
    const address = this.server.address() as AddressInfo | null;
    if (address === null) throw new FloeError('not_ready', 'the proxy does not listen');
    const host = address.family === 'IPv6' ? `[${address.address}]` : address.address;
    return `http://${host}:${address.port}`;
  }

  listen(address: { readonly host: string; readonly port: number }): Promise<void> {
    return new Promise((resolve, reject) => {
      const onError = (cause: Error): void => {
        reject(listenError('the proxy', address, LISTEN_OPTIONS, cause));
      };
      this.server.once('error', onError);
      this.server.listen(address.port, address.host, () => {
        this.server.off('error', onError);
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
    const session: ProxySession = new ProxySession(spec, {
      clock,
      engines,
      journal,
      observer,
      abandonGraceMs,
      suffixes,
      onClosing: () => this.keys.close(spec.key),
      onClosed: () => this.sessions.delete(session),
    });
    this.keys.add(spec.key, session);
    try {
      await session.connections.listen((connection) => {
        this.sessionOfSocket.set(connection, session);
        this.server.emit('connection', connection);
      });
    } catch (error) {
      this.keys.remove(spec.key);
      throw error;
    }
    this.sessions.add(session);
    return session;
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

  /** Handles one request. Never rejects: every failure is answered in the client's dialect. */
  private async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const method = request.method ?? '';
    let match: RouteMatch | null = null;
    let session: ProxySession | null = null;
    let kind: RouteKind | null = null;
    const { clock } = this.deps;
    const arrivedMs = clock.monotonicMs();
    try {
      refuseAmbiguousFraming(request);
      const target = parseTarget(request.url ?? '');
      match = matchRoute(method, target.path, request.headers);
      kind = routeKindOf(match, method);
      const owner = this.keys.find(sessionKeyOf(target, keyHeadersOf(request)));
      const ownerOfSocket = this.sessionOfSocket.get(request.socket);
      if (ownerOfSocket !== undefined && ownerOfSocket !== owner) {
        throw new FloeError('unauthorized', 'the session key does not belong to this socket');
      }
      session = owner;
      session.requests++;
      session.connections.addResponse(response);
      // Other kinds of requests, such as one for the model list, have no body.
      const hasBody = kind === 'generate' || kind === 'count_tokens';
      const body = hasBody ? await receiveBody(request, clock, session.bodyBudget) : Buffer.alloc(0);
      publishRequest(request, target, session.spec, match.dialect, body);
      if (kind === null) throw unknownRoute(match, method, target.path, response);
      const turn = this.turns.next(owner);
      if (turn !== null) await session.bodyBudget.during(body.length, () => turn);
      if (response.destroyed) throw new FloeError('cancelled', 'the client went away');
      const context = contextOf(request, target.query, match, session);
      await this.serve(kind, match.dialect, context, session, body, response);
    } catch (thrown) {
      const error = asFloeError(thrown);
      const dialect = match?.dialect ?? guessedDialect(request);
      // Refusals of model lists, token counts and probes are not stored, because no harness gives up because of them.
      if (kind === 'generate' || kind === null) session?.failures.requestRefused(error, kind === 'generate');
      if (kind === 'generate') this.reportRefused(dialect, error, arrivedMs);
      if (!response.destroyed) this.refuse(request, response, dialect, error);
    }
  }

  /** Reports a call that was refused before it began. A call that has begun is reported by its session instead. */
  private reportRefused({ name }: Dialect, { code }: FloeError, arrivedMs: number): void {
    const totalMs = this.deps.clock.monotonicMs() - arrivedMs;
    this.deps.observer?.({ dialect: name, engineId: null, code, totalMs, engineMs: null });
  }

  private refuse(request: IncomingMessage, response: ServerResponse, dialect: Dialect, error: FloeError): void {
    if (request.complete) {
      sendError(response, dialect, error);
      return;
    }
    // The connection is closed after the response, because the unread rest of the body would otherwise be parsed as the next request.
    response.setHeader('connection', 'close');
    sendError(response, dialect, error, (_, body) => {
      response.write(body);
      endAfterDraining(request, response, this.deps.clock);
    });
  }

  private async serve(
    kind: RouteKind,
    dialect: Dialect,
    context: CallContext,
    session: ProxySession,
    body: Buffer,
    response: ServerResponse,
  ): Promise<void> {
    const { modelName, engine } = session.spec;
    switch (kind) {
      case 'probe':
        response.writeHead(200, { 'content-length': 0 }).end();
        return;
      case 'models':
        sendJson(response, 200, dialect.encodeModels(modelName, this.maxModelLen(engine.pool)));
        return;
      case 'model':
        refuseModel(context.model ?? '', session.spec);
        sendJson(response, 200, dialect.encodeModel(context.model ?? '', this.maxModelLen(engine.pool)));
        return;
      case 'count_tokens': {
        const tokens = await session.bodyBudget.during(body.length, () =>
          session.admission.countTokens(dialect.parseCount(parseBody(body), context), abortedByClose(response)),
        );
        sendJson(response, 200, dialect.encodeCount(tokens));
        return;
      }
      case 'generate': {
        const known = requestIdentity(dialect, context, body);
        const identity = known instanceof Promise ? await session.bodyBudget.during(body.length, () => known) : known;
        const call = session.admission.admit(identity, dialect, () => dialect.parseRequest(parseBody(body), context));
        await deliver(response, call, {
          clock: this.deps.clock,
          heartbeatMs: this.deps.heartbeatMs ?? HEARTBEAT_MS,
        });
      }
    }
  }
}

function contextOf(
  { headers }: IncomingMessage,
  query: URLSearchParams,
  match: RouteMatch,
  session: ProxySession,
): CallContext {
  const { model, stream } = match.found ? match : { model: null, stream: null };
  const { callRules = null } = session.spec;
  const recorded: CallContext['recorded'] = (completionId) => session.record.sentReply(completionId);
  return { headers, query, callRules, model, stream, recorded };
}

function abortedByClose(response: ServerResponse): AbortSignal {
  const controller = new AbortController();
  onResponseClosed(response, () => controller.abort(new FloeError('cancelled', 'the client went away')));
  return controller.signal;
}
