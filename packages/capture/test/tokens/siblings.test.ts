import type { AssistantMessage, ChatMessage } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { buildGraph } from '../../src/tokens/graph.ts';
import { makeCompletion } from './session.ts';

const QUESTION: ChatMessage = { role: 'user', content: 'go' };
const CLOSE = 2;

const saying = (id: string, text: string, n: number): AssistantMessage => ({
  role: 'assistant',
  content: text,
  tool_calls: [{ id, type: 'function', function: { name: 'f', arguments: `{"n":${n}}` } }],
});

/**
 * Builds a graph of three completions. The first two are replies to the same prompt. The prompt of the third has the messages `given`, which
 * are rendered as the ids `rendered`. Returns the id of the completion that becomes the parent of the third.
 */
function parentOf(given: readonly ChatMessage[], rendered: readonly number[]): string | undefined {
  const prompt = [1, 2, 3];
  const sampled = (index: number, response: number[], message: AssistantMessage) =>
    makeCompletion({ index, prompt, response, messages: [QUESTION], message });
  const graph = buildGraph([
    sampled(0, [20, 21, CLOSE], saying('a', 'one', 1)),
    sampled(1, [30, 31, CLOSE], saying('b', 'two', 2)),
    makeCompletion({
      index: 2,
      prompt: [...prompt, ...rendered, CLOSE, 9],
      response: [7, CLOSE],
      messages: [QUESTION, ...given],
    }),
  ]);
  return graph.nodes[2]?.parent?.completion.completionId;
}

describe('a re-rendered turn after two replies to one prompt', () => {
  it('continues the reply that the request returns, in however many messages and with whatever call ids', () => {
    const { tool_calls } = saying('mine', '', 1);
    const pieces: ChatMessage[] = [
      { role: 'assistant', content: 'one' },
      { role: 'assistant', content: null, tool_calls: tool_calls ?? [] },
    ];
    expect(parentOf(pieces, [50, 51])).toBe('c0');
  });

  it('continues the reply that the request returns, although the other reply shares more ids by chance', () => {
    expect(parentOf([saying('a', 'one', 1)], [30, 51])).toBe('c0');
  });

  it('continues the reply whose call ids the request has, although the request changed the arguments', () => {
    expect(parentOf([saying('a', 'changed', 5)], [50, 51])).toBe('c0');
  });

  it('continues the reply that shares more ids when the request returns neither of them', () => {
    expect(parentOf([{ role: 'assistant', content: 'three' }], [20, 51])).toBe('c0');
  });
});
