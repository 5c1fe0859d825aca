import { isRecord } from '@floe-rl/core';
import type { ToolCall } from '@floe-rl/core/schema';
import type { CanonicalReply } from '../dialect.ts';

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
    blocks.push(`${head.slice(0, -1)},"input":${inputJson(call)}}`);
  }
  const head = JSON.stringify({ id: reply.completionId, type: 'message', role: 'assistant', model: reply.model });
  const tail = JSON.stringify({ ...stopOf(reply), usage: usageOf(reply) });
  return `${head.slice(0, -1)},"content":[${blocks.join(',')}],${tail.slice(1)}`;
}

/**
 * Returns the JSON text of the `input` of a `tool_use` block. Arguments that are a JSON object are inserted exactly as sampled. The API
 * allows only an object in this field, so other text is wrapped under the key that Claude Code uses for arguments that it could not parse.
 */
function inputJson(call: ToolCall): string {
  const raw = call.function.arguments;
  if (raw.trim() === '') return '{}';
  try {
    if (isRecord(JSON.parse(raw))) return raw;
  } catch {
    // Arguments that are not JSON are stored in an object by the return statement after this block.
  }
  return JSON.stringify({ __unparsedToolInput: { raw, len: raw.length } });
}

export function stopOf(reply: CanonicalReply): { stop_reason: string; stop_sequence: string | null } {
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

/** Makes the token usage of a reply. In this dialect `input_tokens` does not include the tokens that were read from the prefix cache. */
export function usageOf(reply: CanonicalReply): object {
  const { prompt_tokens, completion_tokens, cached_tokens } = reply.usage;
  const cached = cached_tokens ?? 0;
  return {
    input_tokens: prompt_tokens - cached,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cached,
    output_tokens: completion_tokens,
  };
}
