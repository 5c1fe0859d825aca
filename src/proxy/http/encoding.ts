import { promisify } from 'node:util';
import { brotliDecompress, gunzip, inflate } from 'node:zlib';
import { FloeError } from '../../core/errors.ts';
import { quoted } from '../session/request-limits.ts';
import { MAX_BODY_BYTES, type Reading } from './body.ts';
import { unpackZstd } from './zstd.ts';

type Unpack = (packed: Buffer) => Promise<Buffer>;

/** Off the event loop; stops at the bound. */
const BOUNDED = { maxOutputLength: MAX_BODY_BYTES };
const gunzipBounded: Unpack = (packed) => promisify(gunzip)(packed, BOUNDED);

const ENCODINGS: ReadonlyMap<string, Unpack> = new Map<string, Unpack>([
  ['gzip', gunzipBounded],
  ['x-gzip', gunzipBounded],
  ['deflate', (packed) => promisify(inflate)(packed, BOUNDED)],
  ['br', (packed) => promisify(brotliDecompress)(packed, BOUNDED)],
  ['zstd', (packed) => unpackZstd(packed, MAX_BODY_BYTES)],
]);

/**
 * The body without its `content-encoding`. A session unpacks one body at a time, so what its bodies take together has a
 * bound however small they arrive. Rejects with `bad_request` for an encoding that is not known or data that is not of it,
 * `body_too_large` for what is larger unpacked than a body may be, or `overloaded`.
 */
export async function decodeBody(body: Buffer, encoding: string | undefined, reading: Reading): Promise<Buffer> {
  const name = (encoding ?? '').trim().toLowerCase();
  if (name === '' || name === 'identity') return body;
  const unpack = ENCODINGS.get(name);
  if (unpack === undefined) {
    const known = [...ENCODINGS.keys()].join(', ');
    throw new FloeError('bad_request', `content-encoding ${quoted(name)} is not supported; there is ${known}`);
  }
  try {
    reading.take(body.length);
    const release = await reading.unpacking.acquire();
    try {
      return await unpack(body);
    } catch (cause) {
      throw refused(name, cause);
    } finally {
      release();
    }
  } finally {
    reading.give(body.length);
  }
}

function refused(name: string, cause: unknown): FloeError {
  if (FloeError.is(cause)) return cause;
  if ((cause as { code?: unknown } | null)?.code === 'ERR_BUFFER_TOO_LARGE') {
    return new FloeError('body_too_large', `the body exceeds ${MAX_BODY_BYTES} bytes when it is unpacked`, {}, cause);
  }
  return new FloeError('bad_request', `the body is not valid ${name}`, {}, cause);
}
