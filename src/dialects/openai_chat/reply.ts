import type { FloeError } from '../../core/errors.ts';
import type { CanonicalReply, CanonicalRequest, StreamedReply } from '../dialect.ts';
import { harnessStatus, isContextOverflow } from '../refusal.ts';

export function encodeChatReply(reply: CanonicalReply): string {
  const { message } = reply;
  return JSON.stringify({
    ...head(reply, 'chat.completion'),
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

export function encodeChatStream(reply: CanonicalReply, request: CanonicalRequest): StreamedReply {
  const base = head(reply, 'chat.completion.chunk');
  const chunk = (delta: object, finish: string | null): string =>
    event({ ...base, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }] });
  const { message } = reply;
  let body = chunk({ role: 'assistant', content: '' }, null);
  if (message.reasoning_content !== undefined) body += chunk({ reasoning_content: message.reasoning_content }, null);
  if (message.content !== null && message.content !== '') body += chunk({ content: message.content }, null);
  for (const [index, call] of (message.tool_calls ?? []).entries()) {
    body += chunk({ tool_calls: [{ index, ...call }] }, null);
  }
  let end = chunk({}, finishOf(reply));
  if (request.streamUsage) end += event({ ...base, choices: [], usage: usageOf(reply) });
  return { body, end: `${end}data: [DONE]\n\n` };
}

/** A chunk without content: SSE comments do not reset every client's idle timer. */
export const CHAT_HEARTBEAT = event({
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
  return `${event(errorObject(error))}data: [DONE]\n\n`;
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

function event(data: object): string {
  return `data: ${JSON.stringify(data)}\n\n`;
}

function head(reply: CanonicalReply, object: string): object {
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
