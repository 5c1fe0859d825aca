import type { ServerResponse } from 'node:http';
import type { Clock } from '../../core/clock.ts';
import { asFloeError, type FloeError } from '../../core/errors.ts';
import type { CanonicalReply, CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { Completion } from '../../tokens/completion.ts';
import type { Call } from '../session/call.ts';
import { ReplyWriter } from './reply-writer.ts';
import { onceGone } from './responses.ts';

/** A reader that has not taken a finished reply by then never will; its buffer is freed. */
const DELIVERY_LIMIT_MS = 60_000;

export type DeliveryDeps = { readonly clock: Clock; readonly heartbeatMs: number };

/**
 * Waits for a call and writes its reply, or its failure, in the client's dialect. A streamed reply is relayed as it comes; that it
 * is complete is not told before its completion is durable. Resolves when the response has ended, one way or the other; never
 * rejects.
 */
export function deliver(response: ServerResponse, call: Call, deps: DeliveryDeps): Promise<void> {
  const { parts, relay } = call;
  const { dialect, request } = parts;
  return new Promise((resolve) => {
    const writer = request.stream ? new ReplyWriter(response, parts, deps.clock, deps.heartbeatMs) : null;
    let cancelLimit = (): void => {};
    let sent = false;
    let failed = false;
    let gone = false;
    const more = (): void => {
      if (call.running && relay?.message) writer?.relay(relay.message, relay.promptTokens);
    };
    const stopReading = relay?.read(more);
    response.on('drain', more);
    call.attach();
    // Node reports a response as finished also when its connection was cut with bytes still unsent.
    response.prependOnceListener('finish', () => {
      // Looked up only here: a pipelined response has no socket before its turn.
      sent = response.socket !== null && !response.socket.destroyed;
    });
    // A client that resets its connection: `close` follows.
    response.on('error', () => {});
    const fail = (error: unknown): void => {
      failed = true;
      if (writer !== null && response.headersSent) writer.fail(asFloeError(error));
      else sendError(response, dialect, asFloeError(error));
    };
    const settle = (send: () => void): void => {
      writer?.stop();
      stopReading?.();
      if (gone || response.destroyed || response.writableEnded) return;
      cancelLimit = deps.clock.schedule(DELIVERY_LIMIT_MS, () => response.destroy());
      try {
        send();
      } catch (error) {
        fail(error);
      }
    };
    call.outcome.then(
      (completion) =>
        settle(() => {
          const reply = replyOf(request, completion);
          if (writer === null) sendJson(response, 200, dialect.encodeReply(reply, request));
          else writer.finish(reply);
        }),
      (error: unknown) => settle(() => fail(error)),
    );
    more();
    onceGone(response, () => {
      gone = true;
      writer?.stop();
      stopReading?.();
      cancelLimit();
      call.detach(sent && !failed && call.completion !== null);
      resolve();
    });
  });
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

/** An error as a response of its own, in the dialect's shape. Once headers are out there is no room for one. */
export function sendError(response: ServerResponse, dialect: Dialect, error: FloeError, end = endWith): void {
  if (response.headersSent) {
    response.end();
    return;
  }
  const { status, body } = dialect.encodeError(error);
  if (status === 429 || status === 503) response.setHeader('retry-after', retryAfterSeconds(error));
  sendJson(response, status, body, end);
}

/** `end` is given the bytes when the head is out. */
export function sendJson(response: ServerResponse, status: number, body: string, end = endWith): void {
  const bytes = Buffer.from(body);
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': bytes.length });
  end(response, bytes);
}

function endWith(response: ServerResponse, bytes: Buffer): void {
  response.end(bytes);
}

function retryAfterSeconds(error: FloeError): number {
  const ms = error.details.retry_after_ms;
  return typeof ms === 'number' ? Math.max(1, Math.ceil(ms / 1000)) : 1;
}
