import { describe, expect, test } from 'vitest';
import type { AssistantMessage, ChatTool } from '../../src/schema/index.ts';
import { sameTurn } from '../../src/tokens/same-turn.ts';

const TOOLS: ChatTool[] = [
  {
    type: 'function',
    function: {
      name: 'Edit',
      parameters: {
        type: 'object',
        properties: {
          path: { type: 'string' },
          all: { type: 'boolean', default: false },
          lines: { type: 'array', default: [1, 2] },
        },
      },
    },
  },
];

function calling(text: string, name = 'Edit'): AssistantMessage {
  return {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: 'c', type: 'function', function: { name, arguments: text } }],
  };
}

const same = (echoed: string, sampled = '{"path":"a"}', tools = TOOLS, name = 'Edit'): boolean =>
  sameTurn(calling(echoed, name), calling(sampled, name), tools);

describe('arguments that a harness gives back', () => {
  test('may have what the schema says is the default', () => {
    expect(same('{"all":false,"path":"a"}')).toBe(true);
    expect(same('{"all":false,"lines":[1,2],"path":"a"}')).toBe(true);
    expect(same('{"all": false}', '')).toBe(true);
  });

  test.each([
    ['another value than the default', '{"all":true,"path":"a"}'],
    ['a default that nobody declared', '{"force":false,"path":"a"}'],
    ['an argument that was changed beside it', '{"all":false,"path":"b"}'],
    ['less than was sampled', '{"all":false}'],
    ['what every object has', '{"constructor":false,"path":"a"}'],
    ['no object', '[1]'],
  ])('mean something else with %s', (_, echoed) => {
    expect(same(echoed)).toBe(false);
  });

  test('mean something else where a default takes the place of what was sampled', () => {
    expect(same('{"path":"a","all":false}', '{"path":"a","all":true}')).toBe(false);
  });

  test('are not compared by the schema of another tool, or of none', () => {
    expect(same('{"all":false,"path":"a"}', '{"path":"a"}', TOOLS, 'Write')).toBe(false);
    expect(same('{"all":false,"path":"a"}', '{"path":"a"}', [])).toBe(false);
  });
});
