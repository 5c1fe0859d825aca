import type { IncomingMessage } from 'node:http';
import { promisify } from 'node:util';
import { brotliDecompress, gunzip, inflate } from 'node:zlib';
import { MIB } from '../../core/bytes.ts';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { parseJson } from '../../core/parse.ts';
import { Semaphore } from '../../core/semaphore.ts';
import { quoted } from '../session/request-limits.ts';
import { unpackZstd } from './zstd.ts';

/** Largest body in bytes, which suffices for a conversation of a million tokens of text with images. */
export const MAX_BODY_BYTES = 64 * MIB;

/**
 * Maximum number of JSON values in one body. A session of a thousand turns has some 30,000. Without this limit, parsing a body that
 * consists of small values only would block the event loop, and with it every other session, for seconds.
 */
export const MAX_BODY_VALUES = 200_000;

/** Longest pause in the middle of a request body. A client that sends nothing for longer is refused. */
const BODY_IDLE_MS = 30_000;

/**
 * Maximum number of bytes of request bodies that one session may be sending at the same time: two of the largest bodies, or any number of
 * ordinary ones.
 */
const MAX_READING_BYTES = 2 * MAX_BODY_BYTES;

/**
 * Limits the memory that the request bodies of one session take. Counts the bytes that have been received of bodies that are still being
 * read.
 */
export class BodyBudget {
  /** Lets a session unpack one body at a time, since the unpacked body may be much larger than the packed one. */
  readonly unpacking = new Semaphore(1);
  private bytes = 0;

  /**
   * Adds received bytes. Throws `overloaded` when the session is then above {@link MAX_READING_BYTES}. The bytes are counted in that case
   * as well, so the caller must release them.
   */
  take(bytes: number): void {
    this.bytes += bytes;
    if (this.bytes > MAX_READING_BYTES) {
      const message = `the session sends more than ${MAX_READING_BYTES} bytes at the same time`;
      throw new FloeError('overloaded', message);
    }
  }

  release(bytes: number): void {
    this.bytes -= bytes;
  }
}

/**
 * Reads the whole body of a request. Rejects with `body_too_large`, with `overloaded` when the session's unfinished bodies are too large
 * together, with `bad_request` when the client sends nothing for {@link BODY_IDLE_MS}, and with `cancelled` when it disconnects.
 */
export function readBody(request: IncomingMessage, clock: Clock, budget = new BodyBudget()): Promise<Buffer> {
  const declared = Number(request.headers['content-length'] ?? 0);
  if (declared > MAX_BODY_BYTES) return Promise.reject(tooLarge());
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    let cancelIdle = clock.schedule(BODY_IDLE_MS, onIdle);
    let lastChunkMs = clock.monotonicMs();

    function onIdle(): void {
      const idleMs = clock.monotonicMs() - lastChunkMs;
      if (idleMs < BODY_IDLE_MS) {
        cancelIdle = clock.schedule(BODY_IDLE_MS - idleMs, onIdle);
        return;
      }
      settle(() => reject(new FloeError('bad_request', `the body stopped for ${BODY_IDLE_MS / 1000} s`)));
    }
    function onData(chunk: Buffer): void {
      lastChunkMs = clock.monotonicMs();
      bytes += chunk.length;
      try {
        budget.take(chunk.length);
        if (bytes > MAX_BODY_BYTES) throw tooLarge();
        chunks.push(chunk);
      } catch (error) {
        settle(() => reject(error));
      }
    }
    function onEnd(): void {
      settle(() => resolve(chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks, bytes)));
    }
    function onClose(): void {
      settle(() => reject(new FloeError('cancelled', 'the client went away while sending its body')));
    }
    function settle(outcome: () => void): void {
      cancelIdle();
      budget.release(bytes);
      request.off('data', onData).off('end', onEnd).off('close', onClose).off('error', onClose);
      // From here on errors are ignored: an error of a request without an error listener would end the process.
      request.on('error', () => {});
      outcome();
    }
    request.on('data', onData).on('end', onEnd).on('close', onClose).on('error', onClose);
  });
}

/** Parses the body as JSON. Throws `malformed_json`, or `body_too_large` when it has more than {@link MAX_BODY_VALUES} values. */
export function parseBody(body: Buffer): unknown {
  return parseJson(body, MAX_BODY_VALUES);
}

type Unpack = (packed: Buffer) => Promise<Buffer>;

/** Node unpacks on its thread pool and rejects a body whose output would exceed this size. */
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
 * Undoes the body's `content-encoding`. A session unpacks one body at a time, which bounds the memory that its unpacked bodies take,
 * however small the packed ones are. Rejects with `bad_request` for an unknown encoding or invalid data, with `body_too_large` for a body
 * that is too large when it is unpacked, and with `overloaded`.
 */
export async function decodeBody(body: Buffer, encoding: string | undefined, budget: BodyBudget): Promise<Buffer> {
  const name = (encoding ?? '').trim().toLowerCase();
  if (name === '' || name === 'identity') return body;
  const unpack = ENCODINGS.get(name);
  if (unpack === undefined) {
    const known = [...ENCODINGS.keys()].join(', ');
    throw new FloeError('bad_request', `content-encoding ${quoted(name)} is not supported; there is ${known}`);
  }
  try {
    budget.take(body.length);
    const release = await budget.unpacking.acquire();
    try {
      return await unpack(body);
    } catch (cause) {
      throw unpackError(name, cause);
    } finally {
      release();
    }
  } finally {
    budget.release(body.length);
  }
}

function unpackError(encoding: string, cause: unknown): FloeError {
  if (FloeError.is(cause)) return cause;
  if ((cause as { code?: unknown } | null)?.code === 'ERR_BUFFER_TOO_LARGE') {
    return new FloeError('body_too_large', `the body exceeds ${MAX_BODY_BYTES} bytes when it is unpacked`, {}, cause);
  }
  return new FloeError('bad_request', `the body is not valid ${encoding}`, {}, cause);
}

function tooLarge(): FloeError {
  return new FloeError('body_too_large', `the body exceeds ${MAX_BODY_BYTES} bytes`);
}
