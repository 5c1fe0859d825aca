import type { FloeError } from '@floe-rl/core';
import type { ReplyDelta } from '../../reply.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead, ReplyStream, StreamEnd } from '../dialect.ts';
import { EVENT_STREAM } from '../reply-stream.ts';
import { errorJson } from './errors.ts';
import { PartWriter, responseJson } from './reply.ts';

export function generateStreamType({ streamAsArray }: CanonicalRequest): string {
  return streamAsArray === true ? 'application/json; charset=utf-8' : EVENT_STREAM;
}

export function openGenerateStream(head: ReplyHead, { streamAsArray }: CanonicalRequest): ReplyStream {
  return streamAsArray === true ? new ArrayStream(head) : new EventStream(head);
}

/**
 * Splits a reply into GenerateContentResponses: one for each piece of text and thinking, and one for each tool call when its arguments are
 * complete.
 */
class ResponseSplitter {
  private readonly head: ReplyHead;
  private readonly writer: PartWriter;
  private call: { readonly id: string; readonly name: string; raw: string } | null = null;

  constructor(head: ReplyHead) {
    this.head = head;
    this.writer = new PartWriter(head.completionId);
  }

  delta(delta: ReplyDelta): string[] {
    switch (delta.kind) {
      case 'reasoning':
        return this.responses([...this.closeCall(), this.writer.thought(delta.text)]);
      case 'text':
        return this.responses([...this.closeCall(), this.writer.text(delta.text)]);
      case 'call': {
        const closed = this.closeCall();
        this.call = { id: delta.id, name: delta.name, raw: '' };
        return this.responses(closed);
      }
      case 'arguments':
        if (this.call !== null) this.call.raw += delta.text;
        return [];
    }
  }

  /** Returns the last response, with the parts that are still open and the finish reason. */
  end(reply: CanonicalReply): string {
    return responseJson(this.head, [...this.closeCall(), ...this.writer.finish()], reply);
  }

  /** Returns a response without content. */
  empty(): string {
    return responseJson(this.head, [], null);
  }

  private closeCall(): string[] {
    if (this.call === null) return [];
    const part = this.writer.call(this.call);
    this.call = null;
    return [part];
  }

  private responses(parts: readonly string[]): string[] {
    return parts.map((part) => responseJson(this.head, [part], null));
  }
}

/**
 * Encodes a reply as server-sent events. Some clients run a tool call as soon as they receive it. The first tool call and everything after
 * it are therefore held back until the reply is recorded on disk.
 */
class EventStream implements ReplyStream {
  private readonly splitter: ResponseSplitter;
  private held: string | null = null;

  constructor(head: ReplyHead) {
    this.splitter = new ResponseSplitter(head);
  }

  start(): string {
    return '';
  }

  delta(delta: ReplyDelta): string {
    if (delta.kind === 'call') this.held ??= '';
    const events = this.splitter.delta(delta).map(eventOf).join('');
    if (this.held === null) return events;
    this.held += events;
    return '';
  }

  /** Returns a response with an empty part, because Gemini CLI cannot parse SSE comments. */
  heartbeat(): string {
    return eventOf(this.splitter.empty());
  }

  /**
   * Encodes an error as plain JSON, even in a stream of server-sent events. `@google/genai` up to 2.21, which Gemini CLI and pi use,
   * detects an error only in a piece of the response that is JSON by itself. It reads an event that contains an error as a response without
   * candidates.
   */
  fail(error: FloeError): string {
    return errorJson(error);
  }

  end(reply: CanonicalReply): StreamEnd {
    return { body: '', end: (this.held ?? '') + eventOf(this.splitter.end(reply)) };
  }
}

/**
 * Encodes JSON as the data of one server-sent event. Sampled arguments may contain line breaks between JSON tokens, and a line break would
 * end the data. U+2028 and U+2029 occur only in strings and are escaped for clients that find the end of the data with a regular
 * expression.
 */
function eventOf(json: string): string {
  const line = json
    .replace(/[\r\n]/g, ' ')
    .replace(/\u2028/g, '\\u2028')
    .replace(/\u2029/g, '\\u2029');
  return `data: ${line}\n\n`;
}

/**
 * Encodes a reply as one JSON array, which is sent in one piece at the end. If the reply fails before its end, the error is sent as an
 * array of its own, so no part of this array may have been sent before.
 */
class ArrayStream implements ReplyStream {
  private readonly splitter: ResponseSplitter;
  private readonly responses: string[] = [];

  constructor(head: ReplyHead) {
    this.splitter = new ResponseSplitter(head);
  }

  start(): string {
    return '';
  }

  delta(delta: ReplyDelta): string {
    this.responses.push(...this.splitter.delta(delta));
    return '';
  }

  heartbeat(): string {
    return '\n';
  }

  fail(error: FloeError): string {
    return `[${errorJson(error)}]`;
  }

  end(reply: CanonicalReply): StreamEnd {
    return { body: '', end: `[${[...this.responses, this.splitter.end(reply)].join(',\n')}]` };
  }
}
