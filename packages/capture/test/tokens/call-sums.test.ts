import type { ChatMessage, ToolCall } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { callSumsOf } from '../../src/tokens/call-sums.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { type CompletionInput, makeCompletion } from './session.ts';

const call = (id: string, name: string, args = '{}'): ToolCall => ({
  id,
  type: 'function',
  function: { name, arguments: args },
});
const answer = (id: string): ChatMessage => ({ role: 'tool', tool_call_id: id, content: 'done' });
const offered = ['bash', 'edit'].map((name) => ({ type: 'function' as const, function: { name } }));

/** Makes a call that arrives at a time, takes a second, and samples some tool calls. */
function completion(
  index: number,
  atMs: number,
  fields: { calls?: ToolCall[]; answers?: string[] } & Partial<CompletionInput>,
): Completion {
  const { calls = [], answers = [], ...rest } = fields;
  const made = makeCompletion({ index, prompt: [1], response: [2], ...rest });
  const message = { role: 'assistant' as const, content: null, tool_calls: calls };
  const request = { ...made.request, messages: answers.map(answer), tools: offered };
  return { ...made, timestampMs: atMs, totalMs: 1000, message, request };
}

const sums = (completions: readonly Completion[], failures = {}) => callSumsOf(completions, () => 'vllm', failures);

describe('the sums of the calls of a session', () => {
  it('have the time of a tool from the end of the reply to the request with its result', () => {
    const { tools } = sums([
      completion(1, 1_500, { answers: ['a', 'b'] }),
      completion(0, 0, { calls: [call('a', 'bash'), call('b', 'bash'), call('c', 'edit')] }),
      completion(2, 9_000, { answers: ['a', 'b', 'c'] }),
    ]);
    // 500 ms are in the interval up to 2^(36/4) = 512 ms. 8 s are in the interval up to 2^(52/4) = 8192 ms.
    expect(tools).toEqual([
      { name: 'bash', calls: 2, failures: 0, total_ms: 1_000, times: { '36': 2 } },
      { name: 'edit', calls: 1, failures: 0, total_ms: 8_000, times: { '52': 1 } },
    ]);
  });

  it('count calls that cannot be run as failures, and tools that were not offered under one name', () => {
    const calls = [call('a', 'bash', 'ls'), call('b', 'bash', '[1]'), call('c', 'made_up'), call('d', 'edit')];
    const { tools } = sums([completion(0, 0, { calls })], { edit: 1 });
    expect(tools.map(({ name, calls: count, failures }) => [name, count, failures])).toEqual([
      ['bash', 2, 2],
      ['(unknown)', 1, 1],
      ['edit', 1, 1],
    ]);
  });

  it('leave out the calls of replies that the agent replaced or never received', () => {
    const calls = [call('a', 'bash')];
    const replaced = [completion(0, 0, { calls, abandoned: true }), completion(1, 0, { calls, undelivered: true })];
    expect(sums(replaced).tools).toEqual([]);
  });

  it('have the reasons for which prompts were rendered, the dialects, the kinds of engines and their time', () => {
    const spliced = makeCompletion({ index: 1, prompt: [1], response: [2], engineId: 'gone', dialect: 'anthropic' });
    const capture = { ...spliced.capture, spliced_onto: 'c0', rendered_because: null };
    const first = makeCompletion({ index: 0, prompt: [1], response: [2] });
    const found = callSumsOf([first, { ...spliced, capture }], (id) => (id === 'gone' ? null : 'sglang'));
    expect(found).toEqual({
      dialects: ['openai_chat', 'anthropic'],
      engines: ['sglang'],
      engine_ms: 2,
      spliced: 1,
      rendered: { chat_mode: 1 },
      tools: [],
    });
  });
});
