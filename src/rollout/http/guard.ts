import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { FloeError } from '../../core/errors.ts';

/** Clients of this API send about ten. Node accepts some two thousand. */
const MAX_HEADERS = 100;

/** Refuses what Node's parser lets through although two parties on the way could read it differently. */
export function refuseAmbiguous(request: IncomingMessage): void {
  const { rawHeaders, url = '' } = request;
  if (rawHeaders.length / 2 > MAX_HEADERS) {
    throw new FloeError('bad_request', `a request may have ${MAX_HEADERS} header lines, not ${rawHeaders.length / 2}`);
  }
  let hosts = 0;
  for (let i = 0; i < rawHeaders.length; i += 2) if (rawHeaders[i]?.toLowerCase() === 'host') hosts++;
  if (hosts > 1) throw new FloeError('bad_request', 'the request has more than one Host header');
  if (!url.startsWith('/')) throw new FloeError('bad_request', 'the request target must be a path');
  if (request.httpVersionMajor !== 1) throw new FloeError('bad_request', 'only HTTP/1.0 and HTTP/1.1 are spoken here');
}

/** Checks `Authorization: Bearer`. Compares digests, so the time taken tells nothing about the token or its length. */
export function bearerCheck(token: string | null): (authorization: string | undefined) => void {
  if (token === null) return () => {};
  const expected = sha256(token);
  return (authorization) => {
    const given = /^bearer +(\S+) *$/i.exec(authorization ?? '')?.[1];
    if (given === undefined || !timingSafeEqual(sha256(given), expected)) {
      throw new FloeError('unauthorized', 'send the control token as `Authorization: Bearer <token>`');
    }
  };
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}
