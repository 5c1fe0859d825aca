import { createHash } from 'node:crypto';
import type { Clock } from '../../core/clock.ts';
import { type ErrorCode, FloeError } from '../../core/errors.ts';
import type { ReplyDelta } from '../../core/reply.ts';
import { threadKeyOf } from '../../dialects/call-kinds/label.ts';
import type { CallContext, CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { ReplyListener } from '../../engines/engine.ts';
import type { AssistantMessage, DialectName } from '../../schema/index.ts';
import type { Completion } from '../../tokens/completion.ts';
import { callIdOf } from '../prompt/call-ids.ts';

/** How long an engine call continues when no client waits for it, so that a harness that retries on a new connection can join it. */
export const ABANDON_GRACE_MS = 2_000;

/**
 * Returns a digest that is the same for equal requests. It covers the dialect, the agent thread, the parameters in the path, and the bytes
 * of the body.
 */
export function requestDigest(dialect: Dialect, context: CallContext, body: Buffer): string {
  const { headers, query, model, stream } = context;
  const outside = JSON.stringify([dialect.name, threadKeyOf(headers), model, stream, query.get('alt')]);
  return createHash('sha256').update(outside).update(body).digest('base64');
}

export type CallParts = {
  readonly completionId: string;
  readonly index: number;
  /** Monotonic milliseconds at which the request arrived. */
  readonly arrivedMs: number;
  /** Unix milliseconds at which the request arrived. */
  readonly timestampMs: number;
  readonly dialect: Dialect;
  readonly request: CanonicalRequest;
};

/** A model call that has ended, or that was refused before it began. */
export type EndedCall = {
  readonly dialect: DialectName;
  /** The engine that answered; `null` when none did. */
  readonly engineId: string | null;
  readonly code: 'ok' | ErrorCode;
  /** Milliseconds from the end of the request's body to the moment at which the reply could be sent. */
  readonly totalMs: number;
  /** The part of {@link totalMs} that the engine took for its reply; `null` when there is no reply. */
  readonly engineMs: number | null;
};

/**
 * Called once for every model call that has ended, however many requests waited for it. Must not throw, and must be fast because replies
 * wait for it.
 */
export type CallObserver = (call: EndedCall) => void;

/**
 * One generation and the requests that wait for it: usually one, more when a harness repeats a request. `outcome` resolves once the
 * completion is durable, and rejects with a FloeError when the call fails.
 */
export class Call {
  readonly parts: CallParts;
  readonly outcome: Promise<Completion>;
  completion: Completion | null = null;
  /** The part of the reply that has been sampled; `null` when the request does not stream, and once the call has ended. */
  reply: StreamedReply | null;
  /** Whether a client has received the whole reply. */
  delivered = false;
  private readonly controller = new AbortController();
  private readonly clock: Clock;
  private readonly graceMs: number;
  private waiting = 0;
  private settled = false;
  private cancelGrace: (() => void) | null = null;

  constructor(
    parts: CallParts,
    clock: Clock,
    graceMs: number,
    run: (signal: AbortSignal, reply: StreamedReply | null) => Promise<Completion>,
  ) {
    this.parts = parts;
    this.reply = parts.request.stream ? new StreamedReply(parts.completionId) : null;
    this.clock = clock;
    this.graceMs = graceMs;
    this.outcome = this.track(run(this.controller.signal, this.reply));
    // The requests that wait for the call handle its failure. Without any, the rejection must not end the process.
    this.outcome.catch(() => {});
  }

  get running(): boolean {
    return !this.settled;
  }

  /** Aborts the engine call for this reason. Does nothing once the engine has answered. */
  abort(reason: FloeError): void {
    this.controller.abort(reason);
  }

  /** Registers a request that waits for the reply, which ends the grace period of a call without clients. */
  attach(): void {
    this.waiting++;
    this.cancelGrace?.();
    this.cancelGrace = null;
  }

  /**
   * Removes a waiting request. `delivered` is whether its client received the whole reply. Without waiting requests, a running call is
   * aborted after the grace period.
   */
  detach(delivered: boolean): void {
    this.waiting--;
    if (delivered) this.delivered = true;
    if (this.waiting > 0) return;
    if (!this.settled) {
      this.cancelGrace = this.clock.schedule(this.graceMs, () =>
        this.abort(new FloeError('cancelled', 'the client went away')),
      );
    }
    this.markDelivery();
  }

  private async track(run: Promise<Completion>): Promise<Completion> {
    try {
      this.completion = await run;
      return this.completion;
    } finally {
      this.settled = true;
      this.reply = null;
      this.cancelGrace?.();
      this.markDelivery();
    }
  }

  private markDelivery(): void {
    if (this.completion !== null && this.waiting === 0) this.completion.undelivered = !this.delivered;
  }
}

type StreamedCall = { readonly id: string; readonly name: string; text: string };

/**
 * The part of a running call's reply that has been sampled so far. Readers are notified once for all deltas that arrive in one turn of the
 * event loop, and then send what they have not sent yet; so a reader that joined late or was blocked for a while catches up.
 */
export class StreamedReply implements ReplyListener {
  promptTokens: number | null = null;
  private readonly completionId: string;
  private reasoning = '';
  private text = '';
  private readonly calls: StreamedCall[] = [];
  private readonly readers = new Set<() => void>();
  private begun = false;
  private scheduled = false;

  constructor(completionId: string) {
    this.completionId = completionId;
  }

  started(promptTokens: number | null): void {
    this.promptTokens = promptTokens;
  }

  delta(delta: ReplyDelta): void {
    this.begun = true;
    switch (delta.kind) {
      case 'reasoning':
        this.reasoning += delta.text;
        break;
      case 'text':
        this.text += delta.text;
        break;
      case 'call':
        this.calls[delta.index] = { id: callIdOf(this.completionId, delta.index), name: delta.name, text: '' };
        break;
      case 'arguments': {
        const call = this.calls[delta.index];
        if (call !== undefined) call.text += delta.text;
      }
    }
    if (this.scheduled) return;
    this.scheduled = true;
    setImmediate(() => {
      this.scheduled = false;
      for (const reader of this.readers) reader();
    });
  }

  /** The message as far as it was sampled; `null` before the first delta. */
  get message(): AssistantMessage | null {
    if (!this.begun) return null;
    const { reasoning, text, calls } = this;
    return {
      role: 'assistant',
      content: text,
      reasoning_content: reasoning,
      tool_calls: calls.map(({ id, name, text }) => ({ id, type: 'function', function: { name, arguments: text } })),
    };
  }

  /** Calls `reader`, which must not throw, after each batch of deltas. Returns a function that stops these calls. */
  onDeltas(reader: () => void): () => void {
    this.readers.add(reader);
    return () => void this.readers.delete(reader);
  }
}
