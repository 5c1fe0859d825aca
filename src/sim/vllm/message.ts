import type { CallDelta, MessageDelta, ParsedCall, ParsedMessage } from '../chat-reply.ts';
import type { ChatRequest } from './request.ts';

/** The assistant message of a whole reply. */
export function wireMessage(request: ChatRequest, parsed: ParsedMessage, forced: boolean): object {
  const { reasoning, content, calls } = parsed;
  return {
    role: 'assistant',
    // With a forced call, vLLM writes an empty string where there is no content.
    content: forced ? (content ?? '') : content,
    refusal: null,
    annotations: null,
    audio: null,
    function_call: null,
    ...(calls.length === 0
      ? {}
      : { tool_calls: (request.parallel_tool_calls === false ? calls.slice(0, 1) : calls).map(wireCall) }),
    reasoning: request.include_reasoning === false ? null : reasoning,
  };
}

/** What a chunk shows of a delta; an empty object when that is nothing. */
export function wireDelta(request: ChatRequest, delta: MessageDelta): object {
  const calls = (delta.calls ?? []).filter(({ index }) => request.parallel_tool_calls !== false || index === 0);
  return {
    ...(delta.reasoning === undefined || request.include_reasoning === false ? {} : { reasoning: delta.reasoning }),
    ...(delta.content === undefined ? {} : { content: delta.content }),
    ...(calls.length === 0 ? {} : { tool_calls: calls.map(wireCallDelta) }),
  };
}

function wireCall(call: ParsedCall): object {
  return { id: call.id, type: 'function', function: { name: call.name, arguments: call.argumentsText } };
}

function wireCallDelta(delta: CallDelta): object {
  if ('name' in delta) {
    return { index: delta.index, id: delta.id, type: 'function', function: { name: delta.name } };
  }
  return { index: delta.index, function: { arguments: delta.argumentsText } };
}
