import { type Clock, FloeError, LightAbort, type Span, WellFormedPieces } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import type { CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { ReplyListener } from '../../engines/engine.ts';
import type { ReplyDelta } from '../../reply.ts';
import type { Completion } from '../../tokens/completion.ts';
import { callIdOf } from '../prompt/call-ids.ts';
import type { PendingCall } from '../prompt/prompt-builder.ts';
import type { HeldImages } from './session-images.ts';

/**
 * Time in milliseconds for which an engine call continues when no client waits for it. A harness that retries on a new connection within
 * this time joins the running call.
 */
export const ABANDON_GRACE_MS = 2_000;

export type CallParts = {
  readonly completionId: string;
  readonly index: number;
  /** Time of the request's arrival on the monotonic clock, in milliseconds. */
  readonly arrivedMs: number;
  /** Time of the request's arrival, in Unix milliseconds. */
  readonly timestampMs: number;
  readonly dialect: Dialect;
  readonly request: CanonicalRequest;
};

/** The parts of a call that are known after its admission. Its generation and its record need them. */
export type AdmittedParts = CallParts & {
  /** Name of the engine pool that samples the reply. */
  readonly pool: string;
  /** The request as it is recorded, and the recorded turn that it continues. */
  readonly pending: PendingCall;
  readonly images: HeldImages;
  readonly span: Span;
  /** Releases the space and the images that were reserved for the request. It is called once, when the call has ended. */
  readonly release: () => void;
};

/**
 * Returns the request with the messages and tools of its record, and without its map `claimedCompletions`. The keys of this map are message
 * objects of the request, but the record may contain equal objects of an earlier request instead.
 */
export function withoutClaims(
  request: CanonicalRequest,
  { messages, tools }: Pick<CanonicalRequest, 'messages' | 'tools'>,
): CanonicalRequest {
  if (request.claimedCompletions === undefined) return { ...request, messages, tools };
  const { claimedCompletions: _, ...rest } = request;
  return { ...rest, messages, tools };
}

/**
 * One generation by an engine, with the requests that wait for it. There is usually one request, and more when a harness retries a request.
 * A call is made by the session's admission, and passes through its generation to its record. `outcome` resolves once the completion is
 * durable, and rejects with a FloeError when the call fails.
 */
export class Call {
  readonly parts: AdmittedParts;
  readonly outcome: Promise<Completion>;
  completion: Completion | null = null;
  /** The part of the reply that has been sampled; `null` when the request does not stream, and after the call has ended. */
  reply: StreamedReply | null;
  /** Whether a client has received the complete reply. */
  delivered = false;
  /** Whether the last waiting client disconnected before it had the complete reply, and no other client waits. */
  lost = false;
  private readonly cancellation = new LightAbort();
  private readonly clock: Clock;
  private readonly graceMs: number;
  private readonly settle: (work: Promise<Completion>) => void;
  private waiting = 0;
  private settled = false;
  private cancelGrace: (() => void) | null = null;

  constructor(parts: AdmittedParts, clock: Clock, graceMs: number) {
    this.parts = parts;
    this.reply = parts.request.stream ? new StreamedReply(parts.completionId) : null;
    this.clock = clock;
    this.graceMs = graceMs;
    let settle = (_work: Promise<Completion>): void => {};
    this.outcome = new Promise((resolve) => {
      settle = resolve;
    });
    this.settle = settle;
    // Requests that wait for the call handle its failure. Without this handler, the rejection would end the process when no request waits.
    this.outcome.catch(() => {});
  }

  /** Aborts when no client waits for the reply any more, or when the session ends. */
  get signal(): AbortSignal {
    return this.cancellation;
  }

  get running(): boolean {
    return !this.settled;
  }

  /** Sets the outcome of the call to the result of `work`, which generates and records the reply. Must be called once. */
  endWith(work: Promise<Completion>): void {
    this.settle(this.track(work));
  }

  /** Aborts the engine call with `reason` as its error. Does nothing once the engine has answered. */
  abort(reason: FloeError): void {
    this.cancellation.abort(reason);
  }

  /** Registers a request that waits for the reply. This cancels a pending abort of a call for which no client was waiting. */
  attach(): void {
    this.waiting++;
    this.lost = false;
    this.cancelGrace?.();
    this.cancelGrace = null;
  }

  /**
   * Removes a waiting request. `delivered` is whether the request's client received the whole reply. A running call for which no request
   * waits any more is aborted after the grace period.
   */
  detach(delivered: boolean): void {
    this.waiting--;
    if (delivered) this.delivered = true;
    if (this.waiting > 0) return;
    this.lost = !this.delivered;
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

type StreamedCall = { readonly id: string; readonly name: string; readonly pieces: WellFormedPieces; text: string };

/**
 * The part of a running call's reply that has been sampled so far. Readers are notified once for all deltas that arrive in one turn of the
 * event loop. Each reader then sends what it has not sent yet, so a reader that joined late or was blocked for a while catches up.
 */
export class StreamedReply implements ReplyListener {
  promptTokens: number | null = null;
  private readonly completionId: string;
  private readonly reasoningPieces = new WellFormedPieces(false);
  private readonly textPieces = new WellFormedPieces(false);
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
        this.reasoning += this.reasoningPieces.next(delta.text);
        break;
      case 'text':
        this.text += this.textPieces.next(delta.text);
        break;
      case 'call':
        this.calls[delta.index] = {
          id: callIdOf(this.completionId, delta.index),
          name: delta.name.toWellFormed(),
          pieces: new WellFormedPieces(true),
          text: '',
        };
        break;
      case 'arguments': {
        const call = this.calls[delta.index];
        if (call !== undefined) call.text += call.pieces.next(delta.text);
      }
    }
    if (this.scheduled) return;
    this.scheduled = true;
    setImmediate(() => {
      this.scheduled = false;
      for (const reader of this.readers) reader();
    });
  }

  /** The reply's message as far as it was sampled; `null` before the first delta. */
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

  /** Calls `reader` after each batch of deltas; it must not throw. Returns a function that stops these calls. */
  onDeltas(reader: () => void): () => void {
    this.readers.add(reader);
    return () => void this.readers.delete(reader);
  }
}
