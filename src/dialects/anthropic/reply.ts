import type { FloeError } from '../../core/errors.ts';
import type { ReplyDelta } from '../../core/reply.ts';
import type { ToolCall } from '../../schema/index.ts';
import type { CanonicalReply, ReplyHead, ReplyStream, StreamEnd } from '../dialect.ts';
import { harnessStatus, isContextOverflow } from '../errors.ts';
import { typedEvent } from '../server-sent.ts';

export function encodeMessagesReply(reply: CanonicalReply): string {
  const { message } = reply;
  const blocks: string[] = [];
  if (message.reasoning_content !== undefined && message.reasoning_content !== '') {
    blocks.push(
      JSON.stringify({ type: 'thinking', thinking: message.reasoning_content, signature: reply.completionId }),
    );
  }
  if (message.content !== null && message.content !== '') {
    blocks.push(JSON.stringify({ type: 'text', text: message.content }));
  }
  for (const call of message.tool_calls ?? []) {
    const head = JSON.stringify({ type: 'tool_use', id: call.id, name: call.function.name });
    blocks.push(`${head.slice(0, -1)},"input":${inputText(call)}}`);
  }
  const head = JSON.stringify({ id: reply.completionId, type: 'message', role: 'assistant', model: reply.model });
  const tail = JSON.stringify({ ...stopOf(reply), usage: usageOf(reply) });
  return `${head.slice(0, -1)},"content":[${blocks.join(',')}],${tail.slice(1)}`;
}

/**
 * The text of the `input` object: as sampled where it is a JSON object. The shape has no place for anything else, so
 * that is wrapped under the name that Claude Code itself uses for arguments which it could not parse.
 */
function inputText(call: ToolCall): string {
  const raw = call.function.arguments;
  if (raw.trim() === '') return '{}';
  try {
    const parsed: unknown = JSON.parse(raw);
    if (typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)) return raw;
  } catch {
    // Not JSON: wrapped below.
  }
  return JSON.stringify({ __unparsedToolInput: { raw, len: raw.length } });
}

export function openMessagesStream(head: ReplyHead): ReplyStream {
  return new MessagesStream(head);
}

type BlockKind = 'thinking' | 'text' | 'tool_use';

/**
 * Content blocks follow one another: a delta of another kind, or of the next call, closes the open block. Some clients run a
 * tool as soon as its block is closed, so that event and all behind it are held back until the end, when the completion is durable.
 */
class MessagesStream implements ReplyStream {
  private readonly head: ReplyHead;
  private index = -1;
  private open: BlockKind | null = null;
  /** What may only leave with the end; null: nothing yet. */
  private held: string | null = null;

  constructor(head: ReplyHead) {
    this.head = head;
  }

  start(): string {
    const { completionId, model, promptTokens } = this.head;
    return typedEvent('message_start', {
      message: {
        id: completionId,
        type: 'message',
        role: 'assistant',
        model,
        content: [],
        stop_reason: null,
        stop_sequence: null,
        usage: {
          input_tokens: promptTokens ?? 0,
          cache_creation_input_tokens: 0,
          cache_read_input_tokens: 0,
          output_tokens: 0,
        },
      },
    });
  }

  delta(delta: ReplyDelta): string {
    const text = this.eventsOf(delta);
    if (this.held === null) return text;
    this.held += text;
    return '';
  }

  end(reply: CanonicalReply): StreamEnd {
    const close = this.close();
    const end =
      typedEvent('message_delta', { delta: stopOf(reply), usage: usageOf(reply) }) + typedEvent('message_stop', {});
    return this.held === null ? { body: close, end } : { body: '', end: this.held + close + end };
  }

  private eventsOf(delta: ReplyDelta): string {
    switch (delta.kind) {
      case 'reasoning':
        return (
          this.enter('thinking', { type: 'thinking', thinking: '', signature: '' }) +
          this.piece({ type: 'thinking_delta', thinking: delta.text })
        );
      case 'text':
        return this.enter('text', { type: 'text', text: '' }) + this.piece({ type: 'text_delta', text: delta.text });
      case 'call':
        return (
          this.close() +
          this.enter('tool_use', { type: 'tool_use', id: delta.id, name: delta.name, input: {} }) +
          // As the vendor does: a call without arguments has a piece, too.
          this.piece({ type: 'input_json_delta', partial_json: '' })
        );
      case 'arguments':
        return this.piece({ type: 'input_json_delta', partial_json: delta.text });
    }
  }

  private enter(kind: BlockKind, block: object): string {
    if (this.open === kind) return '';
    const closed = this.close();
    this.open = kind;
    return closed + typedEvent('content_block_start', { index: ++this.index, content_block: block });
  }

  private piece(delta: object): string {
    return typedEvent('content_block_delta', { index: this.index, delta });
  }

  private close(): string {
    if (this.open === null) return '';
    const signature =
      this.open === 'thinking' ? this.piece({ type: 'signature_delta', signature: this.head.completionId }) : '';
    if (this.open === 'tool_use') this.held ??= '';
    this.open = null;
    return signature + typedEvent('content_block_stop', { index: this.index });
  }
}

export const MESSAGES_HEARTBEAT = typedEvent('ping', {});

export function encodeMessagesError(error: FloeError): { status: number; body: string } {
  const status = lostThread(error) === null ? harnessStatus(error) : 404;
  return { status, body: JSON.stringify(errorObject(error)) };
}

export function encodeMessagesStreamError(error: FloeError): string {
  return `event: error\ndata: ${JSON.stringify(errorObject(error))}\n\n`;
}

/** Clients of this dialect recognise an overlong prompt by its wording; the engine's own words follow it. */
function errorObject(error: FloeError): object {
  const lost = lostThread(error);
  if (lost !== null) {
    const message = `thread.previous_message_id: there is no response ${lost} in this session`;
    // By this code the official clients send the whole conversation instead.
    return { type: 'error', error: { type: 'not_found_error', message, details: { error_code: 'thread_not_found' } } };
  }
  const message = isContextOverflow(error) ? `prompt is too long: ${error.message}` : error.message;
  return { type: 'error', error: { type: errorType(harnessStatus(error)), message } };
}

/** The response that a request continues and that there is not; null for any other error. */
function lostThread(error: FloeError): string | null {
  const { unknown_response } = error.details;
  return typeof unknown_response === 'string' ? unknown_response : null;
}

function errorType(status: number): string {
  switch (status) {
    case 401:
      return 'authentication_error';
    case 403:
      return 'permission_error';
    case 404:
      return 'not_found_error';
    case 413:
      return 'request_too_large';
    case 429:
      return 'rate_limit_error';
    case 503:
      return 'overloaded_error';
    case 504:
      return 'timeout_error';
    default:
      return status < 500 ? 'invalid_request_error' : 'api_error';
  }
}

function stopOf(reply: CanonicalReply): { stop_reason: string; stop_sequence: string | null } {
  switch (reply.finishReason) {
    case 'length':
    case 'abort':
      return { stop_reason: 'max_tokens', stop_sequence: null };
    case 'stop':
    case 'tool_calls':
      if (reply.message.tool_calls !== undefined) return { stop_reason: 'tool_use', stop_sequence: null };
      if (reply.stopText !== null) return { stop_reason: 'stop_sequence', stop_sequence: reply.stopText };
      return { stop_reason: 'end_turn', stop_sequence: null };
  }
}

/** In this dialect `input_tokens` leaves out what the cache served. */
function usageOf(reply: CanonicalReply): object {
  const { prompt_tokens, completion_tokens, cached_tokens } = reply.usage;
  const cached = cached_tokens ?? 0;
  return {
    input_tokens: prompt_tokens - cached,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cached,
    output_tokens: completion_tokens,
  };
}
