import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { FloeError } from '../../core/errors.ts';
import type { Dialect, RouteKind } from '../../dialects/dialect.ts';
import { matchRoute, type RouteMatch } from '../../dialects/registry.ts';
import { quoted } from '../session/request-limits.ts';

/** Maximum number of headers of a request. Harnesses send about forty. */
export const MAX_HEADERS = 200;

/**
 * Matches paths with dot segments, encoded separators or backslashes. No route contains them, and two parsers may interpret them
 * differently.
 */
const SUSPICIOUS_PATH = /(^|\/)\.\.?(\/|$)|%2e|%2f|%5c|\\/i;

/** Matches `/s/<key>`, with which a harness prefixes a dialect's path to send its session key. */
const KEY_PREFIX = /^\/s\/([^/]+)(\/.*)?$/;

export type Target = {
  /** The path that a dialect defines: without the session key's prefix and the query. */
  readonly path: string;
  /** The session key in the path; `null` when the path does not start with `/s/<key>`. */
  readonly pathKey: string | null;
  readonly query: URLSearchParams;
  readonly queryKey: string | null;
};

/**
 * Refuses requests that Node's parser accepts although no legitimate client sends them. The connection is closed after the refusal, since
 * a client and a proxy that disagree about one request may disagree about where the next one starts. Throws `bad_request`.
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
  if (hosts > 1) throw new FloeError('bad_request', 'more than one Host header');
  const hasBody =
    request.headers['transfer-encoding'] !== undefined || Number(request.headers['content-length'] ?? 0) > 0;
  if (hasBody && request.method !== 'POST') throw new FloeError('bad_request', `${request.method} with a body`);
}

/**
 * Splits the request target into path, key and query. Throws `bad_request` for anything but an absolute path without dot segments and
 * encoded separators.
 */
export function parseTarget(url: string): Target {
  if (!url.startsWith('/')) throw new FloeError('bad_request', 'the request target is not a path');
  const question = url.indexOf('?');
  const fullPath = question < 0 ? url : url.slice(0, question);
  if (SUSPICIOUS_PATH.test(fullPath)) {
    throw new FloeError('bad_request', 'the path has dot segments or encoded separators');
  }
  const query = new URLSearchParams(question < 0 ? '' : url.slice(question + 1));
  const queryKey = query.get('key');
  const prefixed = KEY_PREFIX.exec(fullPath);
  if (prefixed === null) return { path: fullPath, pathKey: null, query, queryKey };
  return { path: prefixed[2] ?? '/', pathKey: prefixed[1] ?? null, query, queryKey };
}

/**
 * Returns the session key of a request, which may be in the path, the query or a header; `null` when it has none. Throws `bad_request` for
 * two different keys, because guessing which one counts would let one session act as another.
 */
export function sessionKeyOf(target: Target, headers: IncomingHttpHeaders): string | null {
  const candidates = [
    target.pathKey,
    bearerToken(headers.authorization),
    firstValue(headers['x-api-key']),
    firstValue(headers['x-goog-api-key']),
    target.queryKey,
  ];
  let key: string | null = null;
  for (const candidate of candidates) {
    if (candidate === null || candidate === '') continue;
    if (key !== null && key !== candidate) {
      throw new FloeError('bad_request', 'the request carries two different keys; send the session key everywhere');
    }
    key = candidate;
  }
  return key;
}

function bearerToken(authorization: string | undefined): string | null {
  const match = /^bearer +(.*)$/i.exec(authorization ?? '');
  return match?.[1]?.trim() ?? null;
}

function firstValue(value: string | string[] | undefined): string | null {
  return (Array.isArray(value) ? value[0] : value) ?? null;
}

/** Returns the dialect in which a request without a valid target is refused. It is guessed from the URL and the headers. */
export function guessedDialect(request: IncomingMessage): Dialect {
  const path = (request.url ?? '').replace(/\?.*$/s, '').replace(/^\/s\/[^/]*/, '');
  return matchRoute(request.method ?? '', path, request.headers).dialect;
}

/** Returns the purpose of a request; `null` for an unknown route. A `HEAD` request on any known path is a probe. */
export function routeKindOf(match: RouteMatch, method: string): RouteKind | null {
  if (match.found) return match.kind;
  return method === 'HEAD' && match.allow.length > 0 ? 'probe' : null;
}

/**
 * Returns the error for an unknown route. When the path exists with other methods, it sets the `allow` header, unless that path answers
 * only probes.
 */
export function unknownRoute(match: RouteMatch, method: string, path: string, response: ServerResponse): FloeError {
  const allow = match.found ? [] : match.allow;
  if (allow.every((other) => other === 'HEAD')) return new FloeError('not_found', `no such path: ${quoted(path)}`);
  response.setHeader('allow', allow.join(', '));
  return new FloeError('method_not_allowed', `${quoted(path)} takes ${allow.join(', ')}, not ${method}`);
}

/**
 * Refuses an upgrade (WebSocket, h2c) and ends the connection, which Node's server no longer manages. Harnesses that try WebSockets first
 * send an ordinary request after this refusal.
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
  // The socket is destroyed after the response, because it would outlive the server if the client kept its side open.
  socket.end(`${head.join('\r\n')}\r\n\r\n${body}`, () => socket.destroy());
}
