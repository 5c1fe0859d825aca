import type { FloeError } from '../../core/errors.ts';
import type { ReplyDelta } from '../../core/reply.ts';
import type { ToolCall } from '../../schema/index.ts';
import { customInput } from '../custom-tool.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead, ReplyStream, StreamEnd } from '../dialect.ts';
import { harnessStatus, isContextOverflow } from '../errors.ts';
import { dataEvent } from '../server-sent.ts';
import { ValueEnd } from './value-end.ts';

const DONE = 'data: [DONE]\n\n';

export function encodeChatReply(reply: CanonicalReply, request: CanonicalRequest): string {
  const { message } = reply;
  return JSON.stringify({
    ...headOf(reply, 'chat.completion'),
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: message.content,
          ...(message.reasoning_content === undefined ? {} : { reasoning_content: message.reasoning_content }),
          ...(message.tool_calls === undefined
            ? {}
            : { tool_calls: message.tool_calls.map((call) => callObject(call, request)) }),
        },
        logprobs: null,
        finish_reason: finishOf(reply),
      },
    ],
    usage: usageOf(reply),
  });
}

function callObject(call: ToolCall, request: CanonicalRequest): object {
  const { name, arguments: text } = call.function;
  if (!isCustom(name, request)) return call;
  return { id: call.id, type: 'custom', custom: { name, input: customInput(text) } };
}

function isCustom(name: string, request: CanonicalRequest): boolean {
  return request.toolForms.get(name)?.kind === 'custom';
}

export function openChatStream(head: ReplyHead, request: CanonicalRequest): ReplyStream {
  return new ChatStream(head, request);
}

/**
 * Some clients run a call as soon as its arguments are whole, others when the next call begins. So what makes the first call whole
 * and all behind it are held back until the end, when the completion is durable.
 */
class ChatStream implements ReplyStream {
  private readonly base: object;
  private readonly request: CanonicalRequest;
  /** A custom call that is open: its input can be told from the argument text only when that is complete. */
  private custom: { readonly index: number; text: string } | null = null;

  /** Of the first call. */
  private readonly valueEnd = new ValueEnd();
  private calls = 0;
  /** What may only leave with the end; null: nothing yet. */
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

  end(reply: CanonicalReply): StreamEnd {
    const usage = this.request.streamUsage ? dataEvent({ ...this.base, choices: [], usage: usageOf(reply) }) : '';
    const body = this.closeCustom();
    const end = `${this.chunk({}, finishOf(reply))}${usage}${DONE}`;
    return this.held === null ? { body, end } : { body: '', end: this.held + body + end };
  }

  private arguments(index: number, text: string): string {
    const end = this.held === null ? this.valueEnd.find(text) : null;
    if (end === null) return this.argumentsPiece(index, text);
    this.held = this.argumentsPiece(index, text.slice(end));
    return end === 0 ? '' : this.argumentsPiece(index, text.slice(0, end));
  }

  private argumentsPiece(index: number, text: string): string {
    return this.call(index, { function: { arguments: text } });
  }

  private openCall(index: number, id: string, name: string): string {
    if (!isCustom(name, this.request)) {
      return this.call(index, { id, type: 'function', function: { name, arguments: '' } });
    }
    this.custom = { index, text: '' };
    return this.call(index, { id, type: 'custom', custom: { name, input: '' } });
  }

  private closeCustom(): string {
    if (this.custom === null) return '';
    const { index, text } = this.custom;
    this.custom = null;
    return this.call(index, { custom: { input: customInput(text) } });
  }

  private call(index: number, call: object): string {
    return this.chunk({ tool_calls: [{ index, ...call }] });
  }

  private chunk(delta: object, finish: string | null = null): string {
    return dataEvent({ ...this.base, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }] });
  }
}

/** A chunk without content: SSE comments do not reset every client's idle timer. */
export const CHAT_HEARTBEAT = dataEvent({
  id: 'heartbeat',
  object: 'chat.completion.chunk',
  created: 0,
  model: '',
  choices: [{ index: 0, delta: {}, finish_reason: null }],
});

export function encodeChatError(error: FloeError): { status: number; body: string } {
  return { status: harnessStatus(error), body: JSON.stringify(errorObject(error)) };
}

export function encodeChatStreamError(error: FloeError): string {
  return `${dataEvent(errorObject(error))}${DONE}`;
}

function errorObject(error: FloeError): object {
  return {
    error: {
      message: error.message,
      type: errorType(harnessStatus(error)),
      param: null,
      code: isContextOverflow(error) ? 'context_length_exceeded' : error.code,
    },
  };
}

function errorType(status: number): string {
  if (status === 401) return 'authentication_error';
  if (status === 429) return 'rate_limit_error';
  return status < 500 ? 'invalid_request_error' : 'server_error';
}

function headOf(reply: ReplyHead, object: string): object {
  return { id: reply.completionId, object, created: Math.floor(reply.createdMs / 1000), model: reply.model };
}

/** Engines say `stop` after a forced tool call; clients look for `tool_calls` whenever there are calls. */
function finishOf(reply: CanonicalReply): string {
  switch (reply.finishReason) {
    case 'stop':
    case 'tool_calls':
      return reply.message.tool_calls === undefined ? 'stop' : 'tool_calls';
    case 'length':
    case 'abort':
      return 'length';
  }
}

function usageOf(reply: CanonicalReply): object {
  const { prompt_tokens, completion_tokens, cached_tokens } = reply.usage;
  return {
    prompt_tokens,
    completion_tokens,
    total_tokens: prompt_tokens + completion_tokens,
    ...(cached_tokens === null ? {} : { prompt_tokens_details: { cached_tokens } }),
  };
}
