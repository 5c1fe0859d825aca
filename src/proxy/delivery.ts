import type { ServerResponse } from 'node:http';
import type { Clock } from '../core/clock.ts';
import { asFloeError, type FloeError } from '../core/errors.ts';
import type { CanonicalReply, CanonicalRequest, Dialect, StreamFraming } from '../dialects/dialect.ts';
import { streamOf } from '../dialects/reply-parts.ts';
import type { Completion } from '../tokens/completion.ts';
import type { Call } from './call.ts';

/**
 * How long a stream's headers are held back. The engine's quick refusals (an overlong prompt, an overload) arrive within
 * it and keep their HTTP status, which is what harnesses act on; no client minds a silence this short.
 */
const HEADERS_HOLD_MS = 1_000;

/** Half of the shortest idle limit that leaves room for a lost tick: clients give up from 60 s of silence on. */
export const HEARTBEAT_MS = 10_000;

/** A reader that has not taken a finished reply by then never will; its buffer is freed. */
const DELIVERY_LIMIT_MS = 60_000;

export type DeliveryDeps = { readonly clock: Clock; readonly heartbeatMs: number };

/**
 * Waits for a call and writes its reply, or its failure, in the client's dialect. Nothing of a reply is written before its
 * completion is durable. Resolves when the response has ended, one way or the other; never rejects.
 */
export function deliver(response: ServerResponse, call: Call, deps: DeliveryDeps): Promise<void> {
  const { dialect, request } = call.parts;
  return new Promise((resolve) => {
    const heartbeats = request.stream ? startHeartbeats(response, dialect.framing(request), deps) : () => {};
    let cancelLimit = (): void => {};
    let sent = false;
    call.attach();
    // Node reports a response as finished also when its connection was cut with bytes still unsent.
    response.prependOnceListener('finish', () => {
      // Looked up only here: a pipelined response has no socket before its turn.
      sent = response.socket !== null && !response.socket.destroyed;
    });
    response.once('close', () => {
      heartbeats();
      cancelLimit();
      call.detach(sent && call.completion !== null);
      resolve();
    });
    // A client that resets its connection: `close` follows.
    response.on('error', () => {});
    const write = (send: () => void): void => {
      heartbeats();
      if (response.destroyed || response.writableEnded) return;
      cancelLimit = deps.clock.schedule(DELIVERY_LIMIT_MS, () => response.destroy());
      send();
    };
    call.outcome.then(
      (completion) => write(() => sendReply(response, dialect, request, completion)),
      (error: unknown) => write(() => sendError(response, dialect, asFloeError(error), request)),
    );
  });
}

/** Returns the function that stops them. */
function startHeartbeats(response: ServerResponse, framing: StreamFraming, deps: DeliveryDeps): () => void {
  const beat = (): void => {
    // A client that does not read gets no more to buffer.
    if (!response.writableNeedDrain) response.write(framing.heartbeat);
    cancel = deps.clock.schedule(deps.heartbeatMs, beat);
  };
  let cancel = deps.clock.schedule(HEADERS_HOLD_MS, () => {
    startStream(response, framing);
    response.flushHeaders();
    cancel = deps.clock.schedule(deps.heartbeatMs - HEADERS_HOLD_MS, beat);
  });
  return () => cancel();
}

function startStream(response: ServerResponse, { contentType }: StreamFraming): void {
  response.writeHead(200, { 'content-type': contentType, 'cache-control': 'no-cache' });
}

function sendReply(
  response: ServerResponse,
  dialect: Dialect,
  request: CanonicalRequest,
  completion: Completion,
): void {
  const reply = replyOf(request, completion);
  if (!request.stream) {
    sendJson(response, 200, dialect.encodeReply(reply, request));
    return;
  }
  const { body, end } = streamOf(dialect, reply, request);
  if (!response.headersSent) startStream(response, dialect.framing(request));
  response.end(body + end);
}

function replyOf(request: CanonicalRequest, completion: Completion): CanonicalReply {
  return {
    completionId: completion.completionId,
    model: request.model,
    createdMs: completion.timestampMs,
    promptTokens: completion.usage.prompt_tokens,
    message: completion.message,
    finishReason: completion.finishReason,
    stopText: completion.stop?.kind === 'string' ? completion.stop.text : null,
    usage: completion.usage,
  };
}

/** In the dialect's shape: as a response of its own, or inside a stream that has begun. */
export function sendError(
  response: ServerResponse,
  dialect: Dialect,
  error: FloeError,
  request: CanonicalRequest | null,
): void {
  if (response.headersSent) {
    // Only a streamed request gets headers before its outcome.
    response.end(request === null ? '' : dialect.encodeStreamError(error, request));
    return;
  }
  const { status, body } = dialect.encodeError(error);
  if (status === 429 || status === 503) response.setHeader('retry-after', retryAfterSeconds(error));
  sendJson(response, status, body);
}

export function sendJson(response: ServerResponse, status: number, body: string): void {
  const bytes = Buffer.from(body);
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': bytes.length });
  response.end(bytes);
}

function retryAfterSeconds(error: FloeError): number {
  const ms = error.details.retry_after_ms;
  return typeof ms === 'number' ? Math.max(1, Math.ceil(ms / 1000)) : 1;
}
