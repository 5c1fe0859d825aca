import { describe, expect, test } from 'vitest';
import { assistantMessage, contentWithCalls, toolCallsFrom } from '../../src/engines/chat/messages.ts';
import { parseHermes } from '../../src/engines/llama-cpp/hermes.ts';

const CALL = { id: 'c1', type: 'function', function: { name: 'look', arguments: '{"at": 1}' } } as const;

describe('a message', () => {
  test('leaves out what it has not', () => {
    expect(assistantMessage('', '', [])).toEqual({ role: 'assistant', content: '' });
    expect(assistantMessage('', '', [CALL])).toEqual({ role: 'assistant', content: null, tool_calls: [CALL] });
    expect(assistantMessage('Yes.', 'Hm.', [])).toEqual({
      role: 'assistant',
      content: 'Yes.',
      reasoning_content: 'Hm.',
    });
  });

  test('has of a call what the API has, with its arguments as they were sampled', () => {
    const foreign = { ...CALL, index: 0, function: { ...CALL.function, parsed: { at: 1 } } };
    expect(toolCallsFrom([foreign])).toEqual([CALL]);
    expect(toolCallsFrom(null)).toEqual([]);
  });

  test('has no text where there is white space alone beside calls', () => {
    expect(contentWithCalls('\n\n ', [CALL])).toBe('');
    expect(contentWithCalls('\n\n ', [])).toBe('\n\n ');
    expect(contentWithCalls('\nSo. ', [CALL])).toBe('\nSo. ');
    const options = { thinking: false, opensThinking: false, calls: true, callId: () => 'c1' };
    const text = ' <tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>\n';
    expect(parseHermes(text, options)).toEqual({ role: 'assistant', content: null, tool_calls: [CALL] });
  });
});
