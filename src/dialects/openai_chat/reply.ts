import type { FloeError } from '../../core/errors.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead, ReplyStream } from '../dialect.ts';
import { harnessStatus, isContextOverflow } from '../refusal.ts';
import { dataEvent } from '../server-sent.ts';

const DONE = 'data: [DONE]\n\n';

export function encodeChatReply(reply: CanonicalReply): string {
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
          ...(message.tool_calls === undefined ? {} : { tool_calls: message.tool_calls }),
        },
        logprobs: null,
        finish_reason: finishOf(reply),
      },
    ],
    usage: usageOf(reply),
  });
}

export function openChatStream(head: ReplyHead, request: CanonicalRequest): ReplyStream {
  const base = headOf(head, 'chat.completion.chunk');
  const chunk = (delta: object, finish: string | null = null): string =>
    dataEvent({ ...base, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }] });
  return {
    start: () => chunk({ role: 'assistant', content: '' }),
    delta(delta) {
      switch (delta.kind) {
        case 'reasoning':
          return chunk({ reasoning_content: delta.text });
        case 'text':
          return chunk({ content: delta.text });
        case 'call': {
          const { index, id, name } = delta;
          return chunk({ tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] });
        }
        case 'arguments':
          return chunk({ tool_calls: [{ index: delta.index, function: { arguments: delta.text } }] });
      }
    },
    end(reply) {
      const usage = request.streamUsage ? dataEvent({ ...base, choices: [], usage: usageOf(reply) }) : '';
      return { body: '', end: `${chunk({}, finishOf(reply))}${usage}${DONE}` };
    },
  };
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
