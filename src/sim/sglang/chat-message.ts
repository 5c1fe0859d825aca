import type { CallDelta } from '../chat-reply.ts';
import type { SimContext } from '../context.ts';
import { type ChatMessage, templateMessages } from '../messages.ts';
import { renderChat } from '../template.ts';
import { readsCalls } from '../vllm/form.ts';
import { parseCalls, separateReasoning, toolNames } from './reply-text.ts';
import type { ChatRequest } from './request.ts';

/** A conversation to be rendered. */
type Conversation = {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly unknown[] | null | undefined;
  readonly tool_choice?: ChatRequest['tool_choice'];
  readonly continue_final_message?: boolean | null | undefined;
};

/**
 * Renders and encodes a conversation's prompt. The opening of the assistant's turn always follows, unless a last assistant message is
 * to be continued. With `tool_choice` none, the model is not told of the tools.
 */
export function chatPromptIds({ vocabulary, config, mode }: SimContext, request: Conversation): number[] {
  const continued = request.continue_final_message === true && request.messages.at(-1)?.role === 'assistant';
  const text = renderChat(templateMessages(request.messages, { vision: config.vision, anyArguments: false }), {
    mode,
    tools: request.tool_choice === 'none' ? [] : (request.tools ?? []),
    addGenerationPrompt: !continued,
    continueFinalMessage: continued,
  });
  return vocabulary.encode(text);
}

/** The assistant message of a whole reply: thinking is taken off first, calls are looked for in the rest. */
export function readMessage(
  request: ChatRequest,
  text: string,
  insideThinking: boolean,
  newCallId: (index: number) => string,
): { readonly wire: object; readonly called: boolean } {
  const separate = request.separate_reasoning ?? true;
  const split = separate ? separateReasoning(text, insideThinking) : { reasoning: '', text };
  const read = readsCalls(request) ? parseCalls(split.text, toolNames(request.tools)) : { text: split.text, calls: [] };
  const calls = read.calls.map((call, index) => ({
    id: newCallId(index),
    index,
    type: 'function',
    function: { name: call.name, arguments: call.parameters },
  }));
  return {
    wire: {
      role: 'assistant',
      content: read.text,
      reasoning_content: split.reasoning === '' ? null : split.reasoning,
      tool_calls: calls.length === 0 ? null : calls,
    },
    called: calls.length > 0,
  };
}

/** One delta of a stream for each piece of news. */
export function callDeltas(deltas: readonly CallDelta[]): object[] {
  return deltas.map((delta) => ({
    tool_calls: [
      'name' in delta
        ? { index: delta.index, id: delta.id, type: 'function', function: { name: delta.name, arguments: '' } }
        : { index: delta.index, id: null, type: 'function', function: { name: null, arguments: delta.argumentsText } },
    ],
  }));
}
