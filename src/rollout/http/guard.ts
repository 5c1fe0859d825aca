import type { IncomingMessage } from 'node:http';
import { FloeError } from '../../core/errors.ts';
import { isLoopbackHost } from '../callbacks/address.ts';

/** Clients of this API send about ten. Node accepts some two thousand. */
const MAX_HEADERS = 100;

/** Said twice, each of these lets two parties on the way read a request differently. */
const ONCE = new Set(['host', 'authorization', 'content-length', 'content-type', 'transfer-encoding', 'expect']);

const HOST = /^(?:\[[0-9a-f:.]+\]|[\w.~-]+)(?::\d{1,5})?$/i;
/** What may be in a request target unescaped, and a little more that some clients leave as it is. */
const TARGET = /^\/[\x21-\x7e]*$/;

/** Refuses what Node's parser lets through although two parties on the way could read it differently. */
export function refuseAmbiguous(request: IncomingMessage): void {
  const { rawHeaders, url = '', headers } = request;
  if (rawHeaders.length / 2 > MAX_HEADERS) {
    throw new FloeError('bad_request', `a request may have ${MAX_HEADERS} header lines, not ${rawHeaders.length / 2}`);
  }
  const seen = new Set<string>();
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const name = rawHeaders[i]?.toLowerCase() ?? '';
    if (ONCE.has(name) && seen.has(name)) throw new FloeError('bad_request', `the request has more than one ${name}`);
    seen.add(name);
  }
  if (headers.host !== undefined && !HOST.test(headers.host)) {
    throw new FloeError('bad_request', 'the Host header is not a host name and port');
  }
  if (request.httpVersionMajor !== 1) throw new FloeError('bad_request', 'only HTTP/1.0 and HTTP/1.1 are spoken here');
  if (headers.upgrade !== undefined) {
    throw new FloeError(
      'upgrade_required',
      'only plain HTTP/1.1 is spoken here; repeat the request without the upgrade',
    );
  }
  if (!TARGET.test(url)) throw new FloeError('bad_request', 'the request target must be a path in ASCII');
  refuseOddPath(url.split('?')[0] ?? '');
}

/** A path that means another one after it was decoded, or cut off, by somebody else. */
function refuseOddPath(path: string): void {
  // Nearly every path; an error is made for the others only, since its stack costs more than all else here.
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
 * Refuses requests that a web page made a browser send: with a foreign Origin, or to a foreign name that was bound to
 * loopback. Needed where no token keeps them out.
 */
export function refuseForeignPages(request: IncomingMessage): void {
  const { host, origin } = request.headers;
  const names = [host ?? '', origin === undefined ? '' : (/^https?:\/\/(.*)$/.exec(origin)?.[1] ?? 'null')];
  for (const name of names) {
    const bare = name.replace(/:\d+$/, '').replace(/^\[|\]$/g, '');
    if (bare !== '' && !isLoopbackHost(bare)) {
      throw new FloeError(
        'forbidden',
        `without a token only pages and clients of this machine are served, not ${bare}`,
      );
    }
  }
}
