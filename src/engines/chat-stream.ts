import { z } from 'zod';
import type { FloeError } from '../core/errors.ts';
import type { AssistantMessage } from '../schema/index.ts';
import type { ReplyListener } from './engine.ts';
import { EventSplitter } from './event-stream.ts';
import { MessageBuilder } from './message-builder.ts';
import { refusal } from './record.ts';

const DONE = Buffer.from('[DONE]');

export const callPieceSchema = z.looseObject({
  index: z.int().min(0).nullish(),
  id: z.string().nullish(),
  function: z.looseObject({ name: z.string().nullish(), arguments: z.string().nullish() }).nullish(),
});
export type CallPiece = z.output<typeof callPieceSchema>;

export type ChatStreamParts = {
  readonly listener: ReplyListener;
  /** Takes the data of one chunk. What it throws ends the stream. */
  readonly takeChunk: (data: Buffer) => void;
  /** Told to the listener with the first token; null: not known by then. */
  readonly promptTokens: () => number | null;
};

/**
 * What the streams of chat completions have in common: chunks until `[DONE]`, a message that comes in pieces, and a listener that
 * hears of it.
 */
export class ChatStream {
  private readonly parts: ChatStreamParts;
  private readonly events = new EventSplitter();
  private readonly builder: MessageBuilder;
  private started = false;
  private ended = false;

  constructor(parts: ChatStreamParts) {
    this.parts = parts;
    this.builder = new MessageBuilder((delta) => {
      this.start();
      parts.listener.delta(delta);
    });
  }

  /** Takes bytes, cut anywhere. True when the stream is complete. Throws what taking a chunk throws. */
  push(bytes: Buffer): boolean {
    this.events.push(bytes, (data) => {
      if (this.ended) return;
      if (data.equals(DONE)) this.ended = true;
      else this.parts.takeChunk(data);
    });
    // Once for all events of one read, so that a fast engine costs a delta for each read and not for each token.
    this.builder.flush();
    return this.ended;
  }

  addReasoning(text: string): void {
    this.builder.addReasoning(text);
  }

  addText(text: string): void {
    this.builder.addText(text);
  }

  /** A piece of the call at `index`. Throws `engine_error` for one that leaves others out. */
  addCall(index: number, { id, function: piece }: CallPiece): void {
    const fits = index >= 0 && this.builder.addCall(index, id ?? '', piece?.name ?? '', piece?.arguments ?? '');
    if (!fits) throw refusal(`tool_calls.${index} comes before those in front of it`);
  }

  /** The first token is there; a delta says so too. */
  start(): void {
    if (this.started) return;
    this.started = true;
    this.parts.listener.started(this.parts.promptTokens());
  }

  /** What a stream has to end with where a reply is recorded. Throws `engine_error` naming what has not come. */
  whole<U>(finishReason: string | null, usage: U | null | undefined): { finishReason: string; usage: U } {
    if (finishReason === null) throw brokenOff('it has no finish chunk');
    if (!this.ended) throw brokenOff('it has no [DONE]');
    if (!usage) throw refusal('usage is missing; the server does not honour stream_options.include_usage');
    return { finishReason, usage };
  }

  /** What the deltas add up to. Throws `engine_error` for a call without its id or name. */
  message(): AssistantMessage {
    const incomplete = this.builder.incompleteCall();
    if (incomplete !== null) throw refusal(`tool_calls.${incomplete.index} has no ${incomplete.field}`);
    return this.builder.message();
  }
}

/** Of a stream that has ended too early. */
export function brokenOff(what: string): FloeError {
  return refusal(`the stream broke off: ${what}`);
}
