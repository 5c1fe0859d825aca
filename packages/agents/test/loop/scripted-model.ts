import type { AssistantMessage } from '@floe-rl/core/schema';
import type { Model, ModelRequest } from '../../src/loop/model.ts';

/** A model that gives the replies in their order, and keeps the requests. */
export function scriptedModel(replies: readonly AssistantMessage[]): Model & { readonly requests: ModelRequest[] } {
  const requests: ModelRequest[] = [];
  return {
    requests,
    async ask(request) {
      const message = replies[requests.length];
      requests.push({ ...request, messages: [...request.messages] });
      if (message === undefined) throw new Error('the model has no more replies');
      const usage = { prompt_tokens: 10, completion_tokens: 1, cached_tokens: null };
      const finishReason = message.tool_calls === undefined ? 'stop' : 'tool_calls';
      return { completionId: `c${requests.length}`, message, finishReason, usage };
    },
  };
}
