import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { FloeError } from '@floe-rl/core';
import type { Dialect, RouteKind } from '../../dialects/dialect.ts';
import { matchRoute, type RouteMatch } from '../../dialects/registry.ts';
import { shortened } from '../session/request-limits.ts';

/** Maximum number of headers in one request. Harnesses send about forty. */
export const MAX_HEADERS = 200;

/**
 * Matches paths with dot segments, encoded separators or backslashes. They are refused, because no route contains them and two parsers may
 * interpret them differently.
 */
const SUSPICIOUS_PATH = /(^|\/)\.\.?(\/|$)|%2e|%2f|%5c|\\/i;

/** Matches a path that starts with `/s/<key>`. A harness can send its session key in this prefix of the URL. */
const KEY_PREFIX = /^\/s\/([^/]+)(\/.*)?$/;

const NO_QUERY = new URLSearchParams();

export type Target = {
  /** The path as the API dialect defines it, without the session key's prefix and without the query. */
  readonly path: string;
  /** The session key in the path; `null` when the path does not start with `/s/<key>`. */
  readonly pathKey: string | null;
  readonly query: URLSearchParams;
  /** Every value of the query's parameter `key`. */
  readonly queryKeys: readonly string[];
};

/** Every value of each header, as in Node's `request.headersDistinct`. */
type RepeatedHeaders = Readonly<Record<string, readonly string[] | undefined>>;

/**
 * Refuses requests that Node's parser accepts although no legitimate client sends them. The connection is closed after the refusal, since a
 * client and a proxy that interpret one request differently may disagree about where the next request starts. Throws `bad_request` for such
 * a request.
 */
export function refuseAmbiguousFraming(request: IncomingMessage): void {
  if (request.httpVersionMajor !== 1) {
    throw new FloeError('bad_request', `HTTP/${request.httpVersion} is not supported`);
  }
  if (request.rawHeaders.length / 2 > MAX_HEADERS) {
    throw new FloeError('bad_request', `more than ${MAX_HEADERS} headers`);
  }
  let hosts = 0;
  for (let i = 0; i < request.rawHeaders.length; i += 2) {
    const name = request.rawHeaders[i] as string;
    if (name.length === 4 && name.toLowerCase() === 'host') hosts++;
  }
  if (hosts === 0 && request.httpVersion === '1.1') throw new FloeError('bad_request', 'no Host header');
  if (hosts > 1) throw new FloeError('bad_request', 'more than one Host header');
  const hasBody =
    request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0;
  if (hasBody && request.method !== 'POST') throw new FloeError('bad_request', `${request.method} with a body`);
}

/**
 * Splits the request target into path, key and query. Throws `bad_request` when the target is not an absolute path, or when the path has
 * dot segments, encoded separators or backslashes.
 */
export function parseTarget(url: string): Target {
  if (!url.startsWith('/')) throw new FloeError('bad_request', 'the request target is not a path');
  const fullPath = url.split('?', 1)[0] as string;
  if (SUSPICIOUS_PATH.test(fullPath)) {
    throw new FloeError('bad_request', 'the path has dot segments or encoded separators');
  }
  const hasQuery = fullPath.length < url.length;
  const query = hasQuery ? new URLSearchParams(url.slice(fullPath.length)) : NO_QUERY;
  const queryKeys = hasQuery ? query.getAll('key') : [];
  const prefixed = KEY_PREFIX.exec(fullPath);
  if (prefixed === null) return { path: fullPath, pathKey: null, query, queryKeys };
  return { path: prefixed[2] ?? '/', pathKey: prefixed[1] ?? null, query, queryKeys };
}

/**
 * Returns the session key of a request, which may be in the path, the query or a header; `null` when the request has none. Throws
 * `bad_request` for two different keys, because using the wrong one would let one session act as another. `headers` contains every value
 * of a repeated header: Node's `request.headers` drops all but the first `Authorization`.
 */
export function sessionKeyOf(target: Target, headers: RepeatedHeaders): string | null {
  const { authorization: authorizations = [] } = headers;
  if (authorizations.some((value) => value !== authorizations[0])) {
    throw new FloeError('bad_request', 'two different Authorization headers');
  }
  let key = target.pathKey;
  const candidates = [
    ...authorizations.map(bearerToken),
    ...(headers['x-api-key'] ?? []),
    ...(headers['x-goog-api-key'] ?? []),
    ...target.queryKeys,
  ];
  for (const candidate of candidates) {
    if (candidate === null || candidate === '' || candidate === key) continue;
    if (key !== null) {
      throw new FloeError('bad_request', 'the request carries two different keys; send the session key everywhere');
    }
    key = candidate;
  }
  return key;
}

/** Headers in which clients send the session key. */
const KEY_HEADERS = ['authorization', 'x-api-key', 'x-goog-api-key'] as const;

/** Returns every value of the headers that may carry a key. Node makes the lists of all headers at once, which most requests do not need. */
export function keyHeadersOf(request: IncomingMessage): RepeatedHeaders {
  const { headers } = request;
  return KEY_HEADERS.some((name) => headers[name] !== undefined) ? request.headersDistinct : {};
}

function bearerToken(authorization: string): string | null {
  const token = authorization.replace(/^bearer +/i, '');
  return token === authorization ? null : token.trim();
}

/**
 * Returns the dialect in which an error is sent when the request has no valid target. The dialect is guessed from the URL and the headers.
 */
export function guessedDialect(request: IncomingMessage): Dialect {
  const path = (request.url ?? '').replace(/\?.*$/s, '').replace(/^\/s\/[^/]*/, '');
  return matchRoute(request.method ?? '', path, request.headers).dialect;
}

/**
 * Returns the kind of route that a request uses; `null` for an unknown route. A `HEAD` request on any known path is a probe: harnesses check
 * with it that the server is reachable.
 */
export function routeKindOf(match: RouteMatch, method: string): RouteKind | null {
  if (match.found) return match.kind;
  return method === 'HEAD' && match.allow.length > 0 ? 'probe' : null;
}

/**
 * Returns the error for an unknown route. When the path exists with other HTTP methods, sets the `allow` header to them, unless `HEAD` is
 * the only one.
 */
export function unknownRoute(match: RouteMatch, method: string, path: string, response: ServerResponse): FloeError {
  const allow = match.found ? [] : match.allow;
  if (allow.every((other) => other === 'HEAD')) return new FloeError('not_found', `no such path: ${shortened(path)}`);
  response.setHeader('allow', allow.join(', '));
  return new FloeError('method_not_allowed', `${shortened(path)} takes ${allow.join(', ')}, not ${method}`);
}

/**
 * Answers 417 to a request with an `Expect` header that is not `100-continue`. Node's own answer has no body. The connection is closed,
 * because the body of the request is not read.
 */
export function refuseExpectation(request: IncomingMessage, response: ServerResponse): void {
  const { body } = guessedDialect(request).encodeError(
    new FloeError('bad_request', 'only `Expect: 100-continue` is supported'),
  );
  response.writeHead(417, { connection: 'close', 'content-type': 'application/json' }).end(body);
}

/**
 * Refuses an HTTP upgrade (WebSocket, h2c) and closes the connection, because Node's server no longer manages a connection after an upgrade
 * request. Harnesses that try WebSockets first send an ordinary request after this refusal.
 */
export function refuseUpgrade(request: IncomingMessage, socket: Duplex): void {
  const error = new FloeError(
    'upgrade_required',
    'only plain HTTP/1.1 is supported; repeat the request without an upgrade',
  );
  const { body } = guessedDialect(request).encodeError(error);
  const head = [
    'HTTP/1.1 426 Upgrade Required',
    'Connection: close',
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
  ];
  socket.on('error', () => socket.destroy());
  // The socket is destroyed once the response is sent. Otherwise it would outlive the server when the client keeps its side open.
  socket.end(`${head.join('\r\n')}\r\n\r\n${body}`, () => socket.destroy());
}
