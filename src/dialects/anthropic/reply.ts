import type { FloeError } from '../../core/errors.ts';
import type { ToolCall } from '../../schema/index.ts';
import type { CanonicalReply, StreamedReply } from '../dialect.ts';
import { harnessStatus, isContextOverflow } from '../refusal.ts';

export function encodeMessagesReply(reply: CanonicalReply): string {
  const { message } = reply;
  const blocks: string[] = [];
  if (message.reasoning_content !== undefined) {
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

export function encodeMessagesStream(reply: CanonicalReply): StreamedReply {
  const { message } = reply;
  const blocks = new BlockEvents();
  if (message.reasoning_content !== undefined) {
    blocks.add({ type: 'thinking', thinking: '', signature: '' }, [
      { type: 'thinking_delta', thinking: message.reasoning_content },
      { type: 'signature_delta', signature: reply.completionId },
    ]);
  }
  if (message.content !== null && message.content !== '') {
    blocks.add({ type: 'text', text: '' }, [{ type: 'text_delta', text: message.content }]);
  }
  for (const call of message.tool_calls ?? []) {
    blocks.add({ type: 'tool_use', id: call.id, name: call.function.name, input: {} }, [
      { type: 'input_json_delta', partial_json: call.function.arguments },
    ]);
  }
  const usage = usageOf(reply);
  const start = event('message_start', {
    message: {
      id: reply.completionId,
      type: 'message',
      role: 'assistant',
      model: reply.model,
      content: [],
      stop_reason: null,
      stop_sequence: null,
      usage: { ...usage, output_tokens: 0 },
    },
  });
  const end = event('message_delta', { delta: stopOf(reply), usage }) + event('message_stop', {});
  return { body: start + blocks.text, end };
}

class BlockEvents {
  text = '';
  private index = 0;

  add(start: object, deltas: readonly object[]): void {
    const index = this.index++;
    this.text += event('content_block_start', { index, content_block: start });
    for (const delta of deltas) this.text += event('content_block_delta', { index, delta });
    this.text += event('content_block_stop', { index });
  }
}

export const MESSAGES_HEARTBEAT = event('ping', {});

export function encodeMessagesError(error: FloeError): { status: number; body: string } {
  return { status: harnessStatus(error), body: JSON.stringify(errorObject(error)) };
}

export function encodeMessagesStreamError(error: FloeError): string {
  return `event: error\ndata: ${JSON.stringify(errorObject(error))}\n\n`;
}

/** Clients of this dialect recognise an overlong prompt by its wording; the engine's own words follow it. */
function errorObject(error: FloeError): object {
  const message = isContextOverflow(error) ? `prompt is too long: ${error.message}` : error.message;
  return { type: 'error', error: { type: errorType(harnessStatus(error)), message } };
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

function event(type: string, data: object): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`;
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
