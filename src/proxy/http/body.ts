import type { IncomingMessage } from 'node:http';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { parseJson } from '../../core/parse.ts';
import { Semaphore } from '../../core/semaphore.ts';

/** The largest conversation that is read: a million tokens of text with images still fits. */
export const MAX_BODY_BYTES = 64 * 1024 * 1024;

/**
 * Values in one body. A session of a thousand turns has some 30,000; a body of nothing but small values holds the event
 * loop, and with it every other session, for seconds.
 */
export const MAX_BODY_VALUES = 200_000;

/** A client that sends nothing for this long in the middle of its body is not coming back. */
export const BODY_IDLE_MS = 30_000;

/** Of the bodies that one session sends at the same time: two of the largest, or any number of ordinary ones. */
export const MAX_READING_BYTES = 2 * MAX_BODY_BYTES;

/** The bytes of a session's bodies that have been read but not yet taken in as a request. */
export class Reading {
  /** One body at a time: what comes out may be much larger than what went in. */
  readonly unpacking = new Semaphore(1);
  private bytes = 0;

  /** Throws `overloaded` when there is no room; to be given back all the same. */
  take(bytes: number): void {
    this.bytes += bytes;
    if (this.bytes > MAX_READING_BYTES) throw tooMany();
  }

  give(bytes: number): void {
    this.bytes -= bytes;
  }
}

/**
 * The whole body. Rejects with `body_too_large`, `overloaded` when the session's other bodies leave no room, `bad_request`
 * when the client stalls, or `cancelled` when it goes away; what was read is then dropped.
 */
export function readBody(request: IncomingMessage, clock: Clock, reading = new Reading()): Promise<Buffer> {
  const declared = Number(request.headers['content-length'] ?? 0);
  if (declared > MAX_BODY_BYTES) return Promise.reject(tooLarge());
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    let cancelIdle = clock.schedule(BODY_IDLE_MS, onIdle);
    let lastChunkMs = clock.monotonicMs();

    function onIdle(): void {
      const quietMs = clock.monotonicMs() - lastChunkMs;
      if (quietMs < BODY_IDLE_MS) {
        cancelIdle = clock.schedule(BODY_IDLE_MS - quietMs, onIdle);
        return;
      }
      settle(() => reject(new FloeError('bad_request', `the body stopped for ${BODY_IDLE_MS / 1000} s`)));
    }
    function onData(chunk: Buffer): void {
      lastChunkMs = clock.monotonicMs();
      bytes += chunk.length;
      try {
        reading.take(chunk.length);
        if (bytes > MAX_BODY_BYTES) throw tooLarge();
        chunks.push(chunk);
      } catch (error) {
        settle(() => reject(error));
      }
    }
    function onEnd(): void {
      settle(() => resolve(chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks, bytes)));
    }
    function onGone(): void {
      settle(() => reject(new FloeError('cancelled', 'the client went away while sending its body')));
    }
    function settle(outcome: () => void): void {
      cancelIdle();
      reading.give(bytes);
      request.off('data', onData).off('end', onEnd).off('close', onGone).off('error', onGone);
      // A late error of a request that nobody listens to any more would end the process.
      request.on('error', () => {});
      outcome();
    }
    request.on('data', onData).on('end', onEnd).on('close', onGone).on('error', onGone);
  });
}

/** The body as JSON. Throws `malformed_json`, or `body_too_large` beyond {@link MAX_BODY_VALUES}. */
export function parseBody(body: Buffer): unknown {
  return parseJson(body, MAX_BODY_VALUES);
}

function tooMany(): FloeError {
  return new FloeError('overloaded', `the session sends more than ${MAX_READING_BYTES} bytes at the same time`);
}

function tooLarge(): FloeError {
  return new FloeError('body_too_large', `the body exceeds ${MAX_BODY_BYTES} bytes`);
}
