import type { IncomingMessage } from 'node:http';
import { FloeError } from '../../core/errors.ts';

/** No harness sends more than about forty; a request with more is not one of theirs. */
export const MAX_HEADERS = 200;

/** Dot segments and encoded separators: no route has them, and whoever sends them hopes that two parsers disagree. */
const SUSPICIOUS_PATH = /(^|\/)\.\.?(\/|$)|%2e|%2f|%5c|\\/i;

/** `/s/<key>` in front of a dialect's own path. */
const KEY_PREFIX = /^\/s\/([^/]+)(\/.*)?$/;

export type Target = {
  /** Path of the dialect: without key prefix and query. */
  readonly path: string;
  readonly pathKey: string | null;
  readonly query: URLSearchParams;
  readonly queryKey: string | null;
};

/**
 * Refuses what Node's parser lets through although no honest client sends it. Everything here ends the connection, since
 * a client and a proxy that disagree about one request may disagree about where the next one starts.
 */
export function refuseOddFraming(request: IncomingMessage): void {
  if (request.httpVersionMajor !== 1)
    throw new FloeError('bad_request', `HTTP/${request.httpVersion} is not spoken here`);
  if (request.rawHeaders.length / 2 > MAX_HEADERS)
    throw new FloeError('bad_request', `more than ${MAX_HEADERS} headers`);
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

/** Splits the request target. Throws `bad_request` for anything but an absolute path in plain form. */
export function parseTarget(url: string): Target {
  if (!url.startsWith('/')) throw new FloeError('bad_request', 'the request target is not a path');
  const question = url.indexOf('?');
  const fullPath = question < 0 ? url : url.slice(0, question);
  if (SUSPICIOUS_PATH.test(fullPath))
    throw new FloeError('bad_request', 'the path has dot segments or encoded separators');
  const query = new URLSearchParams(question < 0 ? '' : url.slice(question + 1));
  const queryKey = query.get('key');
  const prefixed = KEY_PREFIX.exec(fullPath);
  if (prefixed === null) return { path: fullPath, pathKey: null, query, queryKey };
  return { path: prefixed[2] ?? '/', pathKey: prefixed[1] ?? null, query, queryKey };
}
