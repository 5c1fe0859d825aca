import type { IncomingMessage } from 'node:http';
import { FloeError, isLoopbackHost } from '@floe-rl/core';

/** Maximum number of headers of a request. Clients of this API send about ten; Node would accept about two thousand. */
const MAX_HEADERS = 100;

/** Headers that must not be repeated, because a proxy and this server could each use a different one of the values. */
const SINGLE_HEADERS = new Set([
  'host',
  'authorization',
  'content-length',
  'content-type',
  'transfer-encoding',
  'expect',
]);

const HOST = /^(?:\[[0-9a-f:.]+\]|[\w.~-]+)(?::\d{1,5})?$/i;
/**
 * Matches a request target of visible ASCII characters. This includes a few characters that should be escaped and that some clients send
 * unescaped.
 */
const TARGET = /^\/[\x21-\x7e]*$/;

/**
 * Refuses requests that Node's parser accepts although a proxy between client and server could interpret them differently. Throws
 * `upgrade_required` for a request to upgrade the connection, and `bad_request` for all others.
 */
export function refuseAmbiguous(request: IncomingMessage): void {
  const { rawHeaders, url = '', headers } = request;
  if (rawHeaders.length / 2 > MAX_HEADERS) {
    throw new FloeError('bad_request', `a request may have ${MAX_HEADERS} header lines, not ${rawHeaders.length / 2}`);
  }
  const seen = new Set<string>();
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const name = rawHeaders[i]?.toLowerCase() ?? '';
    if (SINGLE_HEADERS.has(name) && seen.has(name))
      throw new FloeError('bad_request', `the request has more than one ${name}`);
    seen.add(name);
  }
  if (headers.host === undefined && request.httpVersion === '1.1') {
    throw new FloeError('bad_request', 'the request has no Host header');
  }
  if (headers.host !== undefined && !HOST.test(headers.host)) {
    throw new FloeError('bad_request', 'the Host header is not a host name and port');
  }
  if (request.httpVersionMajor !== 1)
    throw new FloeError('bad_request', 'this server supports only HTTP/1.0 and HTTP/1.1');
  if (headers.upgrade !== undefined) {
    throw new FloeError(
      'upgrade_required',
      'this server supports only plain HTTP/1.1; repeat the request without the upgrade',
    );
  }
  if (!TARGET.test(url)) throw new FloeError('bad_request', 'the request target must be a path in ASCII');
  refuseAmbiguousPath(url.split('?')[0] ?? '');
}

/**
 * Refuses a path that a proxy could decode, normalise or truncate to another one. Throws `bad_request` for such a path.
 */
function refuseAmbiguousPath(path: string): void {
  // For nearly every path, the function returns at this line. The error is created only for the few other paths, because recording its
  // stack is expensive.
  if (!/[%\\]|\/\.\.?(?:\/|$)/.test(path)) return;
  const refusal = new FloeError('bad_request', 'the path must have no . or .. segment, no NUL and no broken escape');
  let decoded: string;
  try {
    decoded = decodeURIComponent(path);
  } catch {
    throw refusal;
  }
  const segments = decoded.split(/[\\/]/);
  if (decoded.includes('\0') || segments.includes('..') || segments.includes('.')) throw refusal;
}

/**
 * Refuses requests that the web page of another site made a browser send. Such a request has an `Origin` header of the other site, or its
 * `Host` is a name of that site that resolves to loopback. The check is needed for a server without tokens. Throws `forbidden` for such a
 * request.
 */
export function refuseForeignPages(request: IncomingMessage): void {
  const { host, origin } = request.headers;
  const names = [host ?? '', origin === undefined ? '' : (/^https?:\/\/(.*)/.exec(origin)?.[1] ?? 'null')];
  for (const name of names) {
    const bare = name.replace(/:\d+$/, '').replace(/^\[|\]$/g, '');
    if (bare !== '' && !isLoopbackHost(bare)) {
      throw new FloeError(
        'forbidden',
        `without a token this server answers only pages and clients of its own machine, not ${bare}`,
      );
    }
  }
}

/**
 * Refuses a request that a script in a web page sent. Browsers mark such a request with the header `sec-fetch-site` when the server uses TLS
 * or is on loopback. Without this check, a web page whose host name resolves to this server could read the replies of a call that needs no
 * token. Throws `forbidden` for such a request.
 */
export function refuseWebPages({ headers }: IncomingMessage): void {
  const site = headers['sec-fetch-site'];
  if (site === undefined || site === 'none') return;
  throw new FloeError('forbidden', 'without a token this call is not answered to web pages');
}
