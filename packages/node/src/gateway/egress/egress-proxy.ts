import type { lookup } from 'node:dns';
import { rm } from 'node:fs/promises';
import {
  createServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
  request as startRequest,
} from 'node:http';
import { connect, isIP, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import {
  addressKind,
  checkedLookup,
  type EgressRules,
  type EgressTarget,
  FloeError,
  parseTarget,
  RefusedAddress,
  refusalOf,
} from '@floe-rl/core';
import type { EgressReport } from '@floe-rl/core/schema';

/** Maximum number of connections of a sandbox to its egress proxy. Each takes two file descriptors of the gateway. */
const MAX_CONNECTIONS = 128;
/** Time in milliseconds after which a connection on which nothing was sent is closed. */
const IDLE_MS = 300_000;
/** Maximum number of hosts whose requests are counted one by one. A sandbox can ask for any number of names. */
const MAX_COUNTED_HOSTS = 100;
const OTHER_HOSTS = 'others';

/** Headers that concern one connection only, and are not forwarded. */
const CONNECTION_HEADERS = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

export type EgressRequest = { readonly target: string; readonly refusal: string | null };

export type EgressProxyOptions = {
  readonly socketPath: string;
  readonly rules: EgressRules;
  /** Called for each request and each tunnel. Must not throw. */
  readonly onRequest: (request: EgressRequest) => void;
  /** Resolves host names; default: the lookup of the operating system. */
  readonly lookup?: typeof lookup;
};

/**
 * An HTTP proxy through which one sandbox reaches allowed hosts: tunnels (CONNECT) and plain HTTP requests. Connections arrive at a Unix
 * socket that only this sandbox reaches. No library is used, because the rules check the addresses of every connection.
 */
export class EgressProxy {
  private readonly options: EgressProxyOptions;
  private readonly server: Server;
  private readonly sockets = new Set<Duplex>();
  private readonly allowed = new Map<string, number>();
  private readonly refused = new Map<string, number>();
  private sentBytes = 0;
  private receivedBytes = 0;

  private constructor(options: EgressProxyOptions) {
    this.options = options;
    this.server = createServer({ keepAliveTimeout: IDLE_MS }, (request, response) => this.forward(request, response));
    this.server.maxConnections = MAX_CONNECTIONS;
    this.server.on('connect', (request, client, head) => this.tunnel(request, client, head));
    this.server.on('upgrade', (_, client) => refuse(client, 501, 'an upgrade needs a tunnel'));
    this.server.on('clientError', (_, client) => client.destroy());
    this.server.on('connection', (socket) => this.track(socket));
  }

  /** Opens a proxy. Rejects with `setup_failed` when its socket cannot be created. */
  static async open(options: EgressProxyOptions): Promise<EgressProxy> {
    const proxy = new EgressProxy(options);
    const { socketPath } = options;
    await rm(socketPath, { force: true });
    await new Promise<void>((resolve, reject) => {
      proxy.server.once('error', (cause) => {
        reject(new FloeError('setup_failed', `cannot listen on ${socketPath}: ${cause.message}`, {}, cause));
      });
      proxy.server.listen(socketPath, resolve);
    });
    return proxy;
  }

  counts(): EgressReport {
    return {
      allowed: Object.fromEntries(this.allowed),
      refused: Object.fromEntries(this.refused),
      sent_bytes: this.sentBytes,
      received_bytes: this.receivedBytes,
    };
  }

  /** Closes all connections and removes the socket. */
  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.server.close(() => resolve()));
    for (const socket of this.sockets) socket.destroy();
    await closed;
  }

  private tunnel(request: IncomingMessage, client: Duplex, head: Buffer): void {
    client.on('error', () => client.destroy());
    const target = parseTarget(request.url ?? '', null);
    if (target === null) {
      refuse(client, 400, `${request.url} is no host and port`);
      return;
    }
    const refusal = this.refusalOf(target);
    if (refusal !== null) {
      refuse(client, 403, refusal);
      return;
    }
    const upstream = connect({ ...target, autoSelectFamily: true, lookup: this.lookupOf(target) });
    this.track(upstream);
    upstream.once('connect', () => {
      client.write('HTTP/1.1 200 Connection established\r\n\r\n');
      if (head.length > 0) upstream.write(head);
      client.pipe(upstream);
      upstream.pipe(client);
      upstream.setTimeout(IDLE_MS, () => upstream.destroy());
    });
    upstream.once('error', (error) => this.upstreamFailed(client, target, error));
    upstream.once('close', () => {
      this.sentBytes += upstream.bytesWritten;
      this.receivedBytes += upstream.bytesRead;
      client.destroy();
    });
    client.once('close', () => upstream.destroy());
  }

  private forward(request: IncomingMessage, response: ServerResponse): void {
    const url = URL.canParse(request.url ?? '') ? new URL(request.url ?? '') : null;
    const target = url?.protocol === 'http:' ? parseTarget(url.host, 80) : null;
    if (url === null || target === null) {
      answer(response, 400, 'only http URLs and tunnels are proxied');
      return;
    }
    const refusal = this.refusalOf(target);
    if (refusal !== null) {
      answer(response, 403, refusal);
      return;
    }
    const headers = Object.entries(request.headers).filter(([name]) => !CONNECTION_HEADERS.has(name));
    const upstream = startRequest({
      host: target.host,
      port: target.port,
      method: request.method,
      path: `${url.pathname}${url.search}`,
      headers: { ...Object.fromEntries(headers), host: url.host },
      setHost: false,
      lookup: this.lookupOf(target),
      timeout: IDLE_MS,
    });
    upstream.once('socket', (socket) => this.track(socket));
    upstream.once('timeout', () => upstream.destroy(new Error('the host did not reply in time')));
    upstream.once('response', (reply) => {
      const replyHeaders = Object.entries(reply.headers).filter(([name]) => !CONNECTION_HEADERS.has(name));
      response.writeHead(reply.statusCode ?? 502, Object.fromEntries(replyHeaders));
      reply.on('data', (chunk: Buffer) => (this.receivedBytes += chunk.length));
      reply.once('error', () => response.destroy());
      reply.pipe(response);
    });
    upstream.once('error', (error) => {
      if (response.headersSent) {
        response.destroy();
        return;
      }
      const refused = this.recordLate(target, error);
      answer(response, refused ? 403 : 502, error.message);
    });
    request.on('data', (chunk: Buffer) => (this.sentBytes += chunk.length));
    response.once('close', () => upstream.destroy());
    request.pipe(upstream);
  }

  /** Returns why the target is refused; `null` when it is allowed. Counts the request. */
  private refusalOf(target: EgressTarget): string | null {
    const { rules, onRequest } = this.options;
    // An address in the place of a name is not looked up, so it is checked here.
    const refusal = refusalOf(rules, target) ?? literalRefusal(rules, target);
    count(refusal === null ? this.allowed : this.refused, target.host);
    onRequest({ target: `${target.host}:${target.port}`, refusal });
    return refusal;
  }

  private lookupOf(target: EgressTarget): ReturnType<typeof checkedLookup> {
    return checkedLookup(this.options.rules, target, this.options.lookup);
  }

  private upstreamFailed(client: Duplex, target: EgressTarget, error: Error): void {
    refuse(client, this.recordLate(target, error) ? 403 : 502, error.message);
  }

  /** Counts a request that was refused only when the addresses of its host were known. Returns whether it was. */
  private recordLate(target: EgressTarget, error: Error): boolean {
    if (!(error instanceof RefusedAddress)) return false;
    this.options.onRequest({ target: `${target.host}:${target.port}`, refusal: error.message });
    count(this.allowed, target.host, -1);
    count(this.refused, target.host);
    return true;
  }

  private track(socket: Socket): void {
    if (this.sockets.has(socket)) return;
    this.sockets.add(socket);
    socket.once('close', () => this.sockets.delete(socket));
  }
}

function literalRefusal(rules: EgressRules, target: EgressTarget): string | null {
  if (isIP(target.host) === 0) return null;
  const kind = addressKind(target.host);
  const isListed = rules.node?.some((pattern) => refusalOf({ node: [pattern], task: null }, target) === null) === true;
  return kind === 'public' || (kind !== 'forbidden' && isListed) ? null : `${target.host} is a ${kind} address`;
}

function count(counts: Map<string, number>, host: string, change = 1): void {
  const name = counts.has(host) || counts.size < MAX_COUNTED_HOSTS ? host.slice(0, 255) : OTHER_HOSTS;
  counts.set(name, (counts.get(name) ?? 0) + change);
}

function refuse(client: Duplex, status: number, reason: string): void {
  const body = `floe: ${reason}\n`;
  client.end(
    `HTTP/1.1 ${status} Refused\r\ncontent-type: text/plain\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
}

function answer(response: ServerResponse, status: number, reason: string): void {
  response.writeHead(status, { 'content-type': 'text/plain', connection: 'close' }).end(`floe: ${reason}\n`);
}
