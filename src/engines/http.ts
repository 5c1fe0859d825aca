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
  readonly body?: string;
  readonly signal: AbortSignal;
};

/**
 * One call to an engine, read to its end. Rejects with `engine_unavailable` when no reply began: no connection could be opened, or
 * it was lost (`details.connection_lost`) before a byte came back, as happens when a server closes an idle connection at the moment
 * it is used. Rejects with `engine_error` when the reply broke off, or with the signal's reason.
 */
export async function callEngine(pool: Pool, engineId: string, call: HttpCall): Promise<HttpReply> {
  const { signal, method, path, headers, body } = call;
  let began = false;
  try {
    const reply = await pool.request({ method, path, signal, headers: headers ?? {}, body: body ?? null });
    began = true;
    return { status: reply.statusCode, headers: reply.headers, body: await readAll(reply.body, engineId) };
  } catch (thrown) {
    if (signal.aborted) throw signal.reason;
    if (FloeError.is(thrown)) throw thrown;
    throw failure(thrown, engineId, began);
  }
}

function failure(thrown: unknown, engineId: string, began: boolean): FloeError {
  const code = String((thrown as { code?: unknown }).code ?? '');
  const message = thrown instanceof Error && thrown.message !== '' ? thrown.message : code || String(thrown);
  const details = { engine_id: engineId };
  if (began)
    return new FloeError('engine_error', `engine ${engineId} broke off its reply: ${message}`, details, thrown);
  if (thrown instanceof AggregateError || NEVER_SENT.has(code)) {
    return new FloeError('engine_unavailable', `engine ${engineId} cannot be reached: ${message}`, details, thrown);
  }
  if (CONNECTION_LOST.has(code)) {
    const lost = { ...details, connection_lost: true };
    return new FloeError('engine_unavailable', `engine ${engineId} closed the connection: ${message}`, lost, thrown);
  }
  return new FloeError('engine_error', `engine ${engineId} failed: ${message}`, details, thrown);
}

async function readAll(body: AsyncIterable<Buffer>, engineId: string): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    if (bytes > MAX_REPLY_BYTES) {
      throw new FloeError('engine_error', `engine ${engineId}: the reply exceeds ${MAX_REPLY_BYTES} bytes`, {
        engine_id: engineId,
      });
    }
    chunks.push(chunk);
  }
  return chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks, bytes);
}
