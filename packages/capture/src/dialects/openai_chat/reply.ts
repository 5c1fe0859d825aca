import type { ToolCall } from '@floe-rl/core/schema';
import { customInput, isCustomTool } from '../custom-tool.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead } from '../dialect.ts';

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
  if (!isCustomTool(name, request)) return call;
  return { id: call.id, type: 'custom', custom: { name, input: customInput(text) } };
}

/** Makes the fields at the start of a chat completion and of each chunk of a stream. */
export function headOf(reply: ReplyHead, object: string): object {
  return { id: reply.completionId, object, created: Math.floor(reply.createdMs / 1000), model: reply.model };
}

/**
 * Returns the finish reason that clients expect: `tool_calls` whenever the reply contains tool calls, although engines report `stop` after
 * a forced tool call.
 */
export function finishOf(reply: CanonicalReply): string {
  switch (reply.finishReason) {
    case 'stop':
    case 'tool_calls':
      return reply.message.tool_calls === undefined ? 'stop' : 'tool_calls';
    case 'length':
    case 'abort':
      return 'length';
  }
}

export function usageOf(reply: CanonicalReply): object {
  const { prompt_tokens, completion_tokens, cached_tokens } = reply.usage;
  return {
    prompt_tokens,
    completion_tokens,
    total_tokens: prompt_tokens + completion_tokens,
    ...(cached_tokens === null ? {} : { prompt_tokens_details: { cached_tokens } }),
  };
}
