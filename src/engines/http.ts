import type { Readable } from 'node:stream';
import type { Pool } from 'undici';
import { FloeError } from '../core/errors.ts';

/** Failures that happen before a connection exists: the request never left, so nothing was sampled. */
const NEVER_SENT = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
]);

/** The connection went away without a byte of a reply. */
const CONNECTION_LOST = new Set(['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE']);

/** A reply of a million ids and log-probabilities is about 110 MB; whatever is larger is not a reply. */
const MAX_REPLY_BYTES = 256 * 1024 * 1024;

export type HttpReply = {
  readonly status: number;
  readonly headers: Record<string, string | string[] | undefined>;
  readonly body: Buffer;
};

export type HttpCall = {
  readonly method: 'GET' | 'POST';
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly body?: string | Buffer;
  readonly signal: AbortSignal;
};

/** A reply whose status is known and whose body is still to come. One of `read` and `each` must be called. */
export type OpenReply = {
  readonly status: number;
  readonly headers: HttpReply['headers'];
  /** The whole body. */
  read(): Promise<Buffer>;
  /** Hands the body on as it comes, until `take` returns true or throws, or the body ends. Rejects with what `take` throws. */
  each(take: (chunk: Buffer) => boolean): Promise<void>;
};

/**
 * One call to an engine, read to its end. Rejects with `engine_unavailable` when no reply began: no connection could be opened, or
 * it was lost (`details.connection_lost`) before a byte came back, as happens when a server closes an idle connection at the moment
 * it is used. Rejects with `engine_error` when the reply broke off (`details.broken_off`), or with the signal's reason.
 */
export async function callEngine(pool: Pool, engineId: string, call: HttpCall): Promise<HttpReply> {
  const { status, headers, read } = await openReply(pool, engineId, call);
  return { status, headers, body: await read() };
}

/** As {@link callEngine}, up to the reply's head; its body's functions reject with the rest. */
export async function openReply(pool: Pool, engineId: string, call: HttpCall): Promise<OpenReply> {
  const { signal, method, path, headers, body } = call;
  const guarded = async <T>(began: boolean, work: () => Promise<T>): Promise<T> => {
    try {
      return await work();
    } catch (thrown) {
      if (signal.aborted) throw signal.reason;
      if (FloeError.is(thrown)) throw thrown;
      throw failure(thrown, engineId, began);
    }
  };
  const reply = await guarded(false, () =>
    pool.request({ method, path, signal, headers: headers ?? {}, body: body ?? null }),
  );
  return {
    status: reply.statusCode,
    headers: reply.headers,
    read: async () => {
      const chunks: Buffer[] = [];
      await guarded(true, () => eachChunk(reply.body, engineId, (chunk) => chunks.push(chunk) === 0));
      return chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks);
    },
    each: (take) => guarded(true, () => eachChunk(reply.body, engineId, take)),
  };
}

/** Whether a failed call tells something of what the server can do: it answered, and all of the answer arrived. */
export function toldSomething(error: unknown): error is FloeError {
  return FloeError.is(error) && error.code !== 'engine_unavailable' && error.details.broken_off !== true;
}

function failure(thrown: unknown, engineId: string, began: boolean): FloeError {
  const code = String((thrown as { code?: unknown }).code ?? '');
  const message = thrown instanceof Error && thrown.message !== '' ? thrown.message : code || String(thrown);
  const details = { engine_id: engineId };
  if (began) {
    const brokenOff = { ...details, broken_off: true };
    return new FloeError('engine_error', `engine ${engineId} broke off its reply: ${message}`, brokenOff, thrown);
  }
  if (thrown instanceof AggregateError || NEVER_SENT.has(code)) {
    return new FloeError('engine_unavailable', `engine ${engineId} cannot be reached: ${message}`, details, thrown);
  }
  if (CONNECTION_LOST.has(code)) {
    const lost = { ...details, connection_lost: true };
    return new FloeError('engine_unavailable', `engine ${engineId} closed the connection: ${message}`, lost, thrown);
  }
  return new FloeError('engine_error', `engine ${engineId} failed: ${message}`, details, thrown);
}

/** By events: an iterator costs several times as much for each of a stream's many chunks. */
function eachChunk(body: Readable, engineId: string, take: (chunk: Buffer) => boolean): Promise<void> {
  return new Promise((resolve, reject) => {
    let bytes = 0;
    let settled = false;
    const settle = (outcome: () => void): void => {
      if (settled) return;
      settled = true;
      body.off('data', onData);
      outcome();
    };
    const onData = (chunk: Buffer): void => {
      try {
        bytes += chunk.length;
        if (bytes > MAX_REPLY_BYTES) throw tooLarge(engineId);
        // What follows is let through unread, so that the connection can be used again.
        if (take(chunk)) settle(() => resolve(void body.resume()));
      } catch (error) {
        settle(() => reject(error));
        body.destroy();
      }
    };
    body.on('data', onData);
    body.once('end', () => settle(resolve));
    // Stays for good: a body may fail after it has been of use.
    body.on('error', (error) => settle(() => reject(error)));
    body.once('close', () => settle(() => reject(new Error('the connection was closed'))));
  });
}

function tooLarge(engineId: string): FloeError {
  return new FloeError('engine_error', `engine ${engineId}: the reply exceeds ${MAX_REPLY_BYTES} bytes`, {
    engine_id: engineId,
  });
}
