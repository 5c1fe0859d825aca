import { errors, type Pool } from 'undici';
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
 * One call to an engine, read to its end. Rejects with `engine_unavailable` when no connection could be opened, `engine_error`
 * when it broke later, or the signal's reason.
 */
export async function callEngine(pool: Pool, engineId: string, call: HttpCall): Promise<HttpReply> {
  try {
    const { signal, method, path, headers, body } = call;
    const reply = await pool.request({ method, path, signal, headers: headers ?? {}, body: body ?? null });
    return { status: reply.statusCode, headers: reply.headers, body: await readAll(reply.body, engineId) };
  } catch (thrown) {
    if (call.signal.aborted) throw call.signal.reason;
    if (FloeError.is(thrown)) throw thrown;
    const code = (thrown as { code?: unknown }).code;
    const message = thrown instanceof Error ? thrown.message : String(thrown);
    if (thrown instanceof AggregateError || (typeof code === 'string' && NEVER_SENT.has(code))) {
      throw new FloeError(
        'engine_unavailable',
        `engine ${engineId} cannot be reached: ${message || code}`,
        { engine_id: engineId },
        thrown,
      );
    }
    const what = thrown instanceof errors.SocketError ? 'closed the connection' : 'failed';
    throw new FloeError('engine_error', `engine ${engineId} ${what}: ${message}`, { engine_id: engineId }, thrown);
  }
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
