import type { FloeError } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { ReplyListener } from '../engine.ts';
import type { OpenReply } from '../http-exchange.ts';
import { MessageBuilder } from './messages.ts';
import { invalidReply } from './reply-tokens.ts';

/** Data of the event that ends a stream. */
export const STREAM_END = Buffer.from('[DONE]');

export const callDeltaSchema = z.looseObject({
  index: z.int().min(0).nullish(),
  id: z.string().nullish(),
  function: z.looseObject({ name: z.string().nullish(), arguments: z.string().nullish() }).nullish(),
});
export type CallDelta = z.output<typeof callDeltaSchema>;

type ChatStreamDeps = {
  readonly listener: ReplyListener;
  /** Parses the data of one server-sent event. An error that it throws ends the stream. */
  readonly takeChunk: (data: Buffer) => void;
  /**
   * Returns the number of prompt tokens, which is passed to the listener when the first token arrives; `null` when the engine has not
   * reported it by then.
   */
  readonly promptTokens: () => number | null;
};

/**
 * Reads the stream of a chat completion. It does the part that is the same for all engines: it splits the bytes into chunks until
 * `[DONE]`, assembles the message, and notifies the listener.
 */
export class ChatStream {
  private readonly deps: ChatStreamDeps;
  private readonly events = new EventSplitter();
  private readonly builder: MessageBuilder;
  private hasStarted = false;
  private hasEnded = false;

  constructor(deps: ChatStreamDeps) {
    this.deps = deps;
    this.builder = new MessageBuilder((delta) => {
      this.start();
      deps.listener.delta(delta);
    });
  }

  /**
   * Processes the next bytes of the body, which may be split at any position. Returns true when the stream is complete. Throws what
   * `takeChunk` throws.
   */
  push(bytes: Buffer): boolean {
    this.events.push(bytes, (data) => {
      if (this.hasEnded) return;
      if (data.equals(STREAM_END)) this.hasEnded = true;
      else this.deps.takeChunk(data);
    });
    // Flushes once for all events of one read, so that a fast engine costs one delta per read instead of one per token.
    this.builder.flush();
    return this.hasEnded;
  }

  addReasoning(text: string): void {
    this.builder.addReasoning(text);
  }

  addText(text: string): void {
    this.builder.addText(text);
  }

  /** Adds a piece of the tool call at `index`. Throws `engine_error` when a call with a lower index has not arrived yet. */
  addCall(index: number, { id, function: piece }: CallDelta): void {
    const isAdded = index >= 0 && this.builder.addCall(index, id ?? '', piece?.name ?? '', piece?.arguments ?? '');
    if (!isAdded) throw invalidReply(`tool_calls.${index} arrives before the calls with lower indices`);
  }

  /** Notifies the listener, once per stream, that the first token has arrived. Emitting the first delta calls this method too. */
  start(): void {
    if (this.hasStarted) return;
    this.hasStarted = true;
    this.deps.listener.started(this.deps.promptTokens());
  }

  /**
   * Checks that the stream ended with everything that a completion record needs. Throws `engine_error` naming the part that is missing.
   */
  end<U>(finishReason: string | null, usage: U | null | undefined): { finishReason: string; usage: U } {
    if (finishReason === null) throw truncatedStream('it has no finish chunk');
    if (!this.hasEnded) throw truncatedStream('it has no [DONE]');
    if (!usage) throw invalidReply('usage is missing; the server does not honour stream_options.include_usage');
    return { finishReason, usage };
  }

  /** Returns the message that the chunks contain. Throws `engine_error` when a tool call has no id or no name. */
  message(): AssistantMessage {
    const incomplete = this.builder.incompleteCall();
    if (incomplete !== null) throw invalidReply(`tool_calls.${incomplete.index} has no ${incomplete.field}`);
    return this.builder.message();
  }
}

/** Makes the error for a stream that ended before it was complete. `missing` states the part that did not arrive. */
export function truncatedStream(missing: string): FloeError {
  return invalidReply(`the stream broke off: ${missing}`);
}

/** Whether a reply is a stream of server-sent events. A server that does not stream answers with one JSON body instead. */
export function isEventStream({ headers }: OpenReply): boolean {
  return String(headers['content-type'] ?? '').startsWith('text/event-stream');
}

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const DATA_FIELD = Buffer.from('data:');
const SPACE = 0x20;
const NEWLINE = Buffer.from('\n');

/**
 * Extracts the data of each server-sent event from a stream of bytes, which may be split into chunks at any position. Lines may end with LF
 * or CRLF. Comments and fields other than `data` are skipped, and an event that is incomplete at the end of the stream is dropped.
 */
export class EventSplitter {
  /** The received pieces of a line whose end has not arrived yet. */
  private line: Buffer[] = [];
  private data: Buffer[] = [];

  /** Processes the next bytes and calls `onEvent` with the data of each event that they complete. */
  push(chunk: Buffer, onEvent: (data: Buffer) => void): void {
    let from = 0;
    for (;;) {
      const end = chunk.indexOf(LINE_FEED, from);
      if (end < 0) break;
      this.takeLine(this.completeLine(chunk.subarray(from, end)), onEvent);
      from = end + 1;
    }
    if (from < chunk.length) this.line.push(chunk.subarray(from));
  }

  private completeLine(last: Buffer): Buffer {
    if (this.line.length === 0) return last;
    const line = Buffer.concat([...this.line, last]);
    this.line = [];
    return line;
  }

  private takeLine(line: Buffer, onEvent: (data: Buffer) => void): void {
    const end = line.at(-1) === CARRIAGE_RETURN ? line.length - 1 : line.length;
    if (end === 0) {
      if (this.data.length === 0) return;
      const data = this.data.length === 1 ? (this.data[0] as Buffer) : joinLines(this.data);
      this.data = [];
      onEvent(data);
      return;
    }
    if (end < DATA_FIELD.length || line.compare(DATA_FIELD, 0, DATA_FIELD.length, 0, DATA_FIELD.length) !== 0) return;
    const start = line[DATA_FIELD.length] === SPACE ? DATA_FIELD.length + 1 : DATA_FIELD.length;
    this.data.push(line.subarray(start, Math.max(start, end)));
  }
}

function joinLines(lines: readonly Buffer[]): Buffer {
  return Buffer.concat(lines.flatMap((line, index) => (index === 0 ? [line] : [NEWLINE, line])));
}
