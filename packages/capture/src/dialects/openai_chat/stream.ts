import type { FloeError } from '@floe-rl/core';
import type { ReplyDelta } from '../../reply.ts';
import { customInput, isCustomTool } from '../custom-tool.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead, ReplyStream, StreamEnd } from '../dialect.ts';
import { openaiErrorObject } from '../errors.ts';
import { dataEvent } from '../reply-stream.ts';
import { finishOf, headOf, usageOf } from './reply.ts';

const END_OF_STREAM = 'data: [DONE]\n\n';

export function openChatStream(head: ReplyHead, request: CanonicalRequest): ReplyStream {
  return new ChatStream(head, request);
}

/**
 * Encodes a reply as chunks. Some clients run a tool call as soon as its arguments are complete, others when the next call begins. The text
 * that completes the first call, and everything after it, is therefore held back until the reply is recorded on disk.
 */
class ChatStream implements ReplyStream {
  private readonly base: object;
  private readonly request: CanonicalRequest;
  /**
   * The call to a custom tool whose arguments are still arriving; `null` when there is none. Its free-text input can be decoded only from
   * the complete arguments.
   */
  private custom: { readonly index: number; text: string } | null = null;

  /** Detects the end of the first tool call's arguments. */
  private readonly firstArgumentsEnd = new JsonValueEnd();
  private calls = 0;
  /** Text that is held back and sent with the end of the reply; `null` until the first tool call is complete. */
  private held: string | null = null;

  constructor(head: ReplyHead, request: CanonicalRequest) {
    this.base = headOf(head, 'chat.completion.chunk');
    this.request = request;
  }

  start(): string {
    return this.chunk({ role: 'assistant', content: '' });
  }

  delta(delta: ReplyDelta): string {
    if (delta.kind === 'call' && this.calls++ > 0) this.held ??= '';
    if (this.held === null) return this.eventsOf(delta);
    this.held += this.eventsOf(delta);
    return '';
  }

  private eventsOf(delta: ReplyDelta): string {
    switch (delta.kind) {
      case 'reasoning':
        return this.chunk({ reasoning_content: delta.text });
      case 'text':
        return this.chunk({ content: delta.text });
      case 'call':
        return this.closeCustom() + this.openCall(delta.index, delta.id, delta.name);
      case 'arguments':
        if (this.custom === null) return this.arguments(delta.index, delta.text);
        this.custom.text += delta.text;
        return '';
    }
  }

  /** Returns a chunk without content, because SSE comments do not reset the idle timer of every client. */
  heartbeat(): string {
    return this.chunk({});
  }

  /** Encodes an error without `choices`, because some clients take an object with this field for a chunk and ignore the error. */
  fail(error: FloeError): string {
    return dataEvent({ ...this.base, ...openaiErrorObject(error) }) + END_OF_STREAM;
  }

  end(reply: CanonicalReply): StreamEnd {
    const usage = this.request.streamUsage ? dataEvent({ ...this.base, choices: [], usage: usageOf(reply) }) : '';
    const body = this.closeCustom();
    const end = `${this.chunk({}, finishOf(reply))}${usage}${END_OF_STREAM}`;
    return this.held === null ? { body, end } : { body: '', end: this.held + body + end };
  }

  private arguments(index: number, text: string): string {
    const end = this.held === null ? this.firstArgumentsEnd.find(text) : null;
    if (end === null) return this.argumentsChunk(index, text);
    this.held = this.argumentsChunk(index, text.slice(end));
    return end === 0 ? '' : this.argumentsChunk(index, text.slice(0, end));
  }

  private argumentsChunk(index: number, text: string): string {
    return this.callChunk(index, { function: { arguments: text } });
  }

  private openCall(index: number, id: string, name: string): string {
    if (!isCustomTool(name, this.request)) {
      return this.callChunk(index, { id, type: 'function', function: { name, arguments: '' } });
    }
    this.custom = { index, text: '' };
    return this.callChunk(index, { id, type: 'custom', custom: { name, input: '' } });
  }

  private closeCustom(): string {
    if (this.custom === null) return '';
    const { index, text } = this.custom;
    this.custom = null;
    return this.callChunk(index, { custom: { input: customInput(text) } });
  }

  private callChunk(index: number, call: object): string {
    return this.chunk({ tool_calls: [{ index, ...call }] });
  }

  private chunk(delta: object, finish: string | null = null): string {
    return dataEvent({ ...this.base, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }] });
  }
}

const WHITE_SPACE = /\s/;

/**
 * Finds the end of a JSON value that arrives in pieces. It scans each character once, because parsing the text received so far after
 * every piece would take quadratic time.
 */
class JsonValueEnd {
  private depth = 0;
  private inString = false;
  private escaped = false;

  /**
   * Scans the next piece of a JSON value and returns the index at which the value may be complete, or `null` when the piece contains no such
   * index. An object or array is complete at its closing bracket. Any other value, such as a number, may be complete at each of its
   * characters, so the index of its first character is returned.
   */
  find(piece: string): number | null {
    for (let i = 0; i < piece.length; i++) {
      const char = piece[i] as string;
      if (this.inString) this.readInString(char);
      else if (this.isEnd(char)) return i;
    }
    return null;
  }

  private readInString(char: string): void {
    if (this.escaped) this.escaped = false;
    else if (char === '\\') this.escaped = true;
    else if (char === '"') this.inString = false;
  }

  private isEnd(char: string): boolean {
    switch (char) {
      case '{':
      case '[':
        this.depth++;
        return false;
      case '}':
      case ']':
        return --this.depth <= 0;
      default:
        if (this.depth === 0) return !WHITE_SPACE.test(char);
        this.inString = char === '"';
        return false;
    }
  }
}
