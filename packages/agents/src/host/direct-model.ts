import type { DirectCall } from '@floe-rl/core/protocol';
import type { Model, ModelRequest } from '../loop/model.ts';
import type { Turn } from '../tools/conversation.ts';

/** Returns the model of an episode, which is called through the node. Only the new messages of a conversation are sent. */
export function directModel(send: (request: DirectCall, signal: AbortSignal) => Promise<unknown>): Model {
  return { ask: (request, signal) => send(askRequest(request), signal) as Promise<Turn> };
}

function askRequest({
  thread,
  isTrained,
  messages,
  continues,
  tools,
  toolChoice,
  maxTokens,
  enginePool,
}: ModelRequest): DirectCall {
  const rest = { thread, isTrained, toolChoice, maxTokens, enginePool };
  const added = continues === null ? messages : messages.slice(continues.length);
  // A system message at the start of the new messages would replace the earlier one.
  if (continues === null || added[0]?.role === 'system')
    return { ...rest, messages, previousCompletionId: null, tools };
  return {
    ...rest,
    messages: added,
    previousCompletionId: continues.completionId,
    tools: continues.hasSameTools ? null : tools,
  };
}
