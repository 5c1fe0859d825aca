import type { IncomingMessage } from 'node:http';
import { promisify } from 'node:util';
import { brotliDecompress, gunzip, inflate } from 'node:zlib';
import {
  type Clock,
  FloeError,
  GatheredBytes,
  MIB,
  mayEscapeSurrogates,
  parseJson,
  Semaphore,
  wellFormed,
} from '@floe-rl/core';
import { shortened } from '../session/request-limits.ts';
import { unpackZstd } from './zstd.ts';

/** Maximum size of a request body in bytes. It suffices for a conversation of a million tokens of text with images. */
export const MAX_BODY_BYTES = 64 * MIB;

/**
 * Maximum number of JSON values in one request body. A conversation of a thousand turns has some 30,000 values. Without this limit, a body
 * of many small values would block the event loop for seconds while it is parsed, which would delay the calls of every other session.
 */
export const MAX_BODY_VALUES = 200_000;

/** Longest pause in milliseconds between two parts of a request body. The request is refused when its client sends nothing for longer. */
const BODY_IDLE_MS = 30_000;

/**
 * Maximum total size in bytes of the request bodies that one session holds: bodies that are unfinished, that wait to be parsed, or whose
 * tokens are being counted. It suffices for two bodies of the maximum size.
 */
const MAX_HELD_BYTES = 2 * MAX_BODY_BYTES;

/**
 * Limits the memory that one session's request bodies take. Counts the received bytes of all bodies that are still being read or unpacked,
 * that wait to be parsed, or whose tokens are being counted. Bodies of model calls are limited by the record of the session instead.
 */
export class BodyBudget {
  /** Lets a session decompress one body at a time, because the decompressed body may be much larger than the compressed one. */
  readonly unpacking = new Semaphore(1);
  private bytes = 0;

  /**
   * Adds received bytes to the session's sum. Throws `overloaded` when the sum then exceeds {@link MAX_HELD_BYTES}. The bytes are
   * counted even when it throws, so the caller must release them.
   */
  take(bytes: number): void {
    this.bytes += bytes;
    if (this.bytes > MAX_HELD_BYTES) {
      const message = `the session's request bodies that are being read, parsed or counted exceed ${MAX_HELD_BYTES} bytes together`;
      throw new FloeError('overloaded', message);
    }
  }

  release(bytes: number): void {
    this.bytes -= bytes;
  }

  /**
   * Counts `bytes` against the session's limit while `work` runs. Rejects with `overloaded` as {@link take} throws it, or with the error of
   * `work`.
   */
  async during<T>(bytes: number, work: () => Promise<T>): Promise<T> {
    try {
      this.take(bytes);
      return await work();
    } finally {
      this.release(bytes);
    }
  }
}

/**
 * Reads the whole body of a request. Rejects with one of these codes:
 * - `body_too_large`: the body exceeds {@link MAX_BODY_BYTES}.
 * - `overloaded`: the session's unfinished bodies exceed {@link MAX_HELD_BYTES} together.
 * - `bad_request`: the client sends nothing for {@link BODY_IDLE_MS}.
 * - `cancelled`: the client disconnects.
 */
export function readBody(request: IncomingMessage, clock: Clock, budget = new BodyBudget()): Promise<Buffer> {
  const declared = Number(request.headers['content-length'] ?? 0);
  if (declared > MAX_BODY_BYTES) return Promise.reject(tooLarge());
  return new Promise((resolve, reject) => {
    const gathered = new GatheredBytes(declared > 0 ? declared : MAX_BODY_BYTES);
    let bytes = 0;
    let cancelIdle = clock.schedule(BODY_IDLE_MS, onIdle);
    let lastChunkMs = clock.monotonicMs();
    let isSettled = false;

    function onIdle(): void {
      const idleMs = clock.monotonicMs() - lastChunkMs;
      if (idleMs < BODY_IDLE_MS) {
        cancelIdle = clock.schedule(BODY_IDLE_MS - idleMs, onIdle);
        return;
      }
      settle(() => reject(new FloeError('bad_request', `the body stopped for ${BODY_IDLE_MS / 1000} s`)));
    }
    function onData(chunk: Buffer): void {
      if (isSettled) return;
      lastChunkMs = clock.monotonicMs();
      bytes += chunk.length;
      try {
        budget.take(chunk.length);
        if (bytes > MAX_BODY_BYTES) throw tooLarge();
        gathered.add(chunk);
      } catch (error) {
        settle(() => reject(error));
      }
    }
    function onEnd(): void {
      settle(() => resolve(gathered.take()));
    }
    function onClose(): void {
      settle(() => reject(new FloeError('cancelled', 'the client went away while sending its body')));
    }
    function settle(outcome: () => void): void {
      if (isSettled) return;
      isSettled = true;
      cancelIdle();
      budget.release(bytes);
      outcome();
      // The listeners stay, because removing them costs as much as adding them, and a later error without a listener would end the process.
      gathered.take();
    }
    request.on('data', onData).on('end', onEnd).on('close', onClose).on('error', onClose);
  });
}

/** Reads and decompresses the body of a request. Rejects as {@link readBody} and {@link decodeBody} do. */
export async function receiveBody(request: IncomingMessage, clock: Clock, budget: BodyBudget): Promise<Buffer> {
  const body = await readBody(request, clock, budget);
  const encoding = request.headers['content-encoding'];
  return encoding === undefined ? body : decodeBody(body, encoding, budget);
}

/**
 * Parses the body as JSON, with U+FFFD in place of lone surrogates, which engines refuse. Throws `malformed_json`, or `body_too_large` when
 * it has more than {@link MAX_BODY_VALUES} values.
 */
export function parseBody(body: Buffer): unknown {
  const value = parseJson(body, MAX_BODY_VALUES);
  return mayEscapeSurrogates(body) ? wellFormed(value) : value;
}

type Unpack = (packed: Buffer) => Promise<Buffer>;

/** Options for Node's zlib, which then rejects a body whose decompressed size would exceed the maximum. */
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
 * Decompresses a body according to its `content-encoding`. A session decompresses one body at a time, which bounds the memory that its
 * decompressed bodies take. Rejects with one of these codes:
 * - `bad_request`: the encoding is unknown or the data is invalid.
 * - `body_too_large`: the decompressed body is too large.
 * - `overloaded`: the session's unfinished bodies exceed {@link MAX_HELD_BYTES} together.
 */
export async function decodeBody(body: Buffer, encoding: string | undefined, budget: BodyBudget): Promise<Buffer> {
  const name = (encoding ?? '').trim().toLowerCase();
  if (name === '' || name === 'identity') return body;
  const unpack = ENCODINGS.get(name);
  if (unpack === undefined) {
    const known = [...ENCODINGS.keys()].join(', ');
    throw new FloeError('bad_request', `content-encoding ${shortened(name)} is not supported; there is ${known}`);
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
