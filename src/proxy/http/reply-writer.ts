import type { ServerResponse } from 'node:http';
import type { Clock } from '../../core/clock.ts';
import type { FloeError } from '../../core/errors.ts';
import type { CanonicalReply, ReplyHead, ReplyStream, StreamFraming } from '../../dialects/dialect.ts';
import { SentDeltas } from '../../dialects/reply-stream.ts';
import type { AssistantMessage } from '../../schema/index.ts';
import type { CallParts } from '../session/call.ts';

/**
 * How long a stream's headers are held back when nothing of the reply is there. The engine's quick refusals (an overlong prompt, an
 * overload) arrive within it and keep their HTTP status, which is what harnesses act on; no client minds a silence this short.
 */
const HEADERS_HOLD_MS = 1_000;

/** Half of the shortest idle limit that leaves room for a lost tick: clients give up from 60 s of silence on. */
export const HEARTBEAT_MS = 10_000;

/** One client's view of a streamed reply: headers, heartbeats, what is relayed, and the rest. */
export class ReplyWriter {
  private readonly response: ServerResponse;
  private readonly parts: CallParts;
  private readonly clock: Clock;
  private readonly heartbeatMs: number;
  private readonly framing: StreamFraming;
  private readonly sent = new SentDeltas();
  private stream: ReplyStream | null = null;
  private lastWriteMs = 0;
  private cancelTimer: () => void;

  constructor(response: ServerResponse, parts: CallParts, clock: Clock, heartbeatMs: number) {
    this.response = response;
    this.parts = parts;
    this.clock = clock;
    this.heartbeatMs = heartbeatMs;
    this.framing = parts.dialect.framing(parts.request);
    this.cancelTimer = clock.schedule(HEADERS_HOLD_MS, () => {
      this.writeHeaders();
      response.flushHeaders();
      this.cancelTimer = clock.schedule(heartbeatMs - HEADERS_HOLD_MS, () => this.beat());
    });
  }

  /**
   * Sends what is new in the message. A client that does not read gets nothing more to buffer: it is sent when it has read, or at
   * the end.
   */
  relay(message: AssistantMessage, promptTokens: number | null): void {
    if (this.response.writableNeedDrain || this.response.writableEnded || this.response.destroyed) return;
    const text = this.missing(message, this.head(promptTokens));
    if (text === '') return;
    if (!this.response.headersSent) {
      this.writeHeaders();
      this.cancelTimer();
      this.cancelTimer = this.clock.schedule(this.heartbeatMs, () => this.beat());
    }
    this.lastWriteMs = this.clock.monotonicMs();
    this.response.write(text);
  }

  /** Sends the rest of the complete reply, whose record must be durable. Throws `engine_error` when more was relayed than it holds. */
  finish(reply: CanonicalReply): void {
    const rest = this.missing(reply.message, reply);
    const { body, end } = (this.stream as ReplyStream).end(reply);
    if (!this.response.headersSent) this.writeHeaders();
    this.response.end(rest + body + end);
  }

  /** Tells of the failure within the stream; only when headers are out. */
  fail(error: FloeError): void {
    this.response.end(this.parts.dialect.encodeStreamError(error, this.parts.request));
  }

  /** Ends heartbeats. May be called twice. */
  stop(): void {
    this.cancelTimer();
  }

  private head(promptTokens: number | null): ReplyHead {
    const { completionId, timestampMs, request } = this.parts;
    return { completionId, model: request.model, createdMs: timestampMs, promptTokens };
  }

  private missing(message: AssistantMessage, head: ReplyHead): string {
    const deltas = this.sent.missingFrom(message);
    let text = '';
    if (this.stream === null) {
      this.stream = this.open(head);
      text = this.stream.start();
    }
    for (const delta of deltas) {
      this.sent.add(delta);
      text += this.stream.delta(delta);
    }
    return text;
  }

  private open(head: ReplyHead): ReplyStream {
    return this.parts.dialect.openStream(head, this.parts.request);
  }

  private writeHeaders(): void {
    this.response.writeHead(200, { 'content-type': this.framing.contentType, 'cache-control': 'no-cache' });
  }

  private signOfLife(): string {
    if (this.framing.startsFirst !== true || this.stream !== null) return this.framing.heartbeat;
    this.stream = this.open(this.head(null));
    return this.stream.start();
  }

  /** Only after a silence, and never more than a client reads. */
  private beat(): void {
    const quietMs = this.clock.monotonicMs() - this.lastWriteMs;
    const early = this.stream !== null && quietMs < this.heartbeatMs;
    if (!early && !this.response.writableNeedDrain) this.response.write(this.signOfLife());
    const waitMs = early ? this.heartbeatMs - quietMs : this.heartbeatMs;
    this.cancelTimer = this.clock.schedule(waitMs, () => this.beat());
  }
}
