import type { ServerResponse } from 'node:http';
import { asFloeError, type Clock, type FloeError } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import type { CanonicalReply, CanonicalRequest, ReplyHead, ReplyStream } from '../../dialects/dialect.ts';
import { SentDeltas } from '../../dialects/reply-stream.ts';
import type { Completion } from '../../tokens/completion.ts';
import type { Call, CallParts } from '../session/call.ts';
import { onResponseClosed, sendError, sendJson } from './responses.ts';

/**
 * Longest time in milliseconds that a client may take to read a finished reply. The connection of a slower client is closed, which frees
 * the buffered reply.
 */
const DELIVERY_LIMIT_MS = 60_000;

/**
 * Maximum time in milliseconds for which the headers of a stream are held back while no delta has arrived. An engine that refuses the
 * request (an overlong prompt, an overload) usually does so within this time. The refusal can then be sent with its own HTTP status, and
 * harnesses react to the status. No client has a timeout this short.
 */
const HEADERS_HOLD_MS = 1_000;

/**
 * Interval in milliseconds between two heartbeats of a stream that has no new deltas. Clients time out after 60 s or more without data, so
 * a late heartbeat does no harm.
 */
export const HEARTBEAT_MS = 10_000;

export type DeliveryDeps = { readonly clock: Clock; readonly heartbeatMs: number };

/**
 * Waits for a model call to end and writes its reply, or its failure, in the client's dialect. A streamed reply is forwarded while it is
 * sampled, but the end of the stream is sent only after the recorded completion is durable. Resolves when the response is closed; never
 * rejects.
 */
export function deliver(response: ServerResponse, call: Call, deps: DeliveryDeps): Promise<void> {
  const { parts, reply: partial } = call;
  const { dialect, request } = parts;
  return new Promise((resolve) => {
    const writer = request.stream ? new StreamWriter(response, parts, deps.clock, deps.heartbeatMs) : null;
    let cancelLimit = (): void => {};
    let sent = false;
    let failed = false;
    let closed = false;
    const writeDeltas = (): void => {
      if (call.running && partial?.message) writer?.writeDeltas(partial.message, partial.promptTokens);
    };
    const stopReading = partial?.onDeltas(writeDeltas);
    if (writer !== null) response.on('drain', writeDeltas);
    call.attach();
    // Node emits `finish` also when the connection was closed with unsent bytes, so the reply counts as sent only if the socket has not
    // been destroyed.
    response.prependOnceListener('finish', () => {
      // The socket is read only when `finish` is emitted: a pipelined request's response has no socket until earlier responses are sent.
      sent = response.socket !== null && !response.socket.destroyed;
    });
    // A client that resets its connection causes an error, which is ignored here because a `close` event follows.
    response.on('error', () => {});
    const fail = (error: unknown): void => {
      failed = true;
      if (writer !== null && response.headersSent) writer.fail(asFloeError(error));
      else sendError(response, dialect, asFloeError(error));
    };
    const settle = (send: () => void): void => {
      writer?.stop();
      stopReading?.();
      if (closed || response.destroyed || response.writableEnded) return;
      try {
        send();
      } catch (error) {
        fail(error);
      }
      // Most replies are in the kernel's buffer by now, and need no timer.
      if (response.socket?.writableLength === 0) return;
      cancelLimit = deps.clock.schedule(DELIVERY_LIMIT_MS, () => response.destroy());
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
    writeDeltas();
    onResponseClosed(response, () => {
      closed = true;
      writer?.stop();
      stopReading?.();
      cancelLimit();
      call.detach(sent && !failed && call.completion !== null);
      resolve();
    });
  });
}

/** Returns a recorded reply in the form that dialects encode. */
export function replyOf(request: CanonicalRequest, completion: Completion): CanonicalReply {
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

/** Writes a streamed reply to one client: headers, heartbeats, deltas, and the end. */
export class StreamWriter {
  private readonly response: ServerResponse;
  private readonly parts: CallParts;
  private readonly clock: Clock;
  private readonly heartbeatMs: number;
  private readonly sent = new SentDeltas();
  private stream: ReplyStream | null = null;
  private lastWriteMs = 0;
  private cancelTimer: () => void;

  constructor(response: ServerResponse, parts: CallParts, clock: Clock, heartbeatMs: number) {
    this.response = response;
    this.parts = parts;
    this.clock = clock;
    this.heartbeatMs = heartbeatMs;
    this.cancelTimer = clock.schedule(HEADERS_HOLD_MS, () => {
      this.writeHeaders();
      response.flushHeaders();
      this.cancelTimer = clock.schedule(heartbeatMs - HEADERS_HOLD_MS, () => this.beat());
    });
  }

  /**
   * Sends the part of the message that this client has not received. Sends nothing while the client does not read, so that no unread data
   * accumulates in memory. The remaining deltas are sent once the client has read, or with the end of the reply.
   */
  writeDeltas(message: AssistantMessage, promptTokens: number | null): void {
    if (this.response.writableNeedDrain || this.response.writableEnded || this.response.destroyed) return;
    const { text } = this.unsent(message, this.head(promptTokens));
    if (text === '') return;
    if (!this.response.headersSent) {
      this.writeHeaders();
      this.cancelTimer();
      this.cancelTimer = this.clock.schedule(this.heartbeatMs, () => this.beat());
    }
    this.lastWriteMs = this.clock.monotonicMs();
    this.response.write(text);
  }

  /**
   * Sends the rest of the complete reply, which must already be recorded durably, and ends the stream. Throws `engine_error` when the
   * deltas that were sent do not match the complete reply.
   */
  finish(reply: CanonicalReply): void {
    const { stream, text } = this.unsent(reply.message, reply);
    const { body, end } = stream.end(reply);
    if (!this.response.headersSent) this.writeHeaders();
    this.response.end(text + body + end);
  }

  /** Ends the stream with an error in the dialect's form. May be called only after the headers were sent. */
  fail(error: FloeError): void {
    const { dialect, request } = this.parts;
    const stream = this.stream ?? dialect.openStream(this.head(null), request);
    this.response.end(stream.fail(error));
  }

  /** Stops the heartbeats. May be called more than once. */
  stop(): void {
    this.cancelTimer();
  }

  private head(promptTokens: number | null): ReplyHead {
    const { completionId, timestampMs, request } = this.parts;
    return { completionId, model: request.model, createdMs: timestampMs, promptTokens };
  }

  /**
   * Encodes what was not encoded before: the start of the reply and the rest of `message`, which is `null` when nothing was sampled yet. The
   * first call opens the stream.
   */
  private unsent(
    message: AssistantMessage | null,
    head: ReplyHead,
  ): { readonly stream: ReplyStream; readonly text: string } {
    const deltas = message === null ? [] : this.sent.missingFrom(message);
    const { dialect, request } = this.parts;
    const stream = this.stream ?? dialect.openStream(head, request);
    let text = this.stream === null ? stream.start() : '';
    this.stream = stream;
    for (const delta of deltas) {
      this.sent.add(delta);
      text += stream.delta(delta);
    }
    return { stream, text };
  }

  private writeHeaders(): void {
    const { dialect, request } = this.parts;
    this.response.writeHead(200, { 'content-type': dialect.streamType(request), 'cache-control': 'no-cache' });
  }

  /**
   * Returns the next heartbeat. The first one is the start of the reply, if the dialect has one. Some clients fail on an event before it, and
   * others take role and id of the reply from the first chunk.
   */
  private heartbeat(): string {
    const { stream, text } = this.unsent(null, this.head(null));
    return text === '' ? stream.heartbeat() : text;
  }

  /**
   * Sends a heartbeat when nothing was written for the heartbeat interval, unless the client does not read. Then schedules the next check.
   */
  private beat(): void {
    const idleMs = this.clock.monotonicMs() - this.lastWriteMs;
    const early = this.stream !== null && idleMs < this.heartbeatMs;
    if (!early && !this.response.writableNeedDrain) this.response.write(this.heartbeat());
    const waitMs = early ? this.heartbeatMs - idleMs : this.heartbeatMs;
    this.cancelTimer = this.clock.schedule(waitMs, () => this.beat());
  }
}
