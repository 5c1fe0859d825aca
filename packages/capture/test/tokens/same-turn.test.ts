import type { AssistantMessage, ChatTool } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
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

describe('arguments that a harness returns', () => {
  it('may have additional properties with the default of the schema', () => {
    expect(same('{"all":false,"path":"a"}')).toBe(true);
    expect(same('{"all":false,"lines":[1,2],"path":"a"}')).toBe(true);
    expect(same('{"all": false}', '')).toBe(true);
  });

  it.each([
    ['given another value than the default', '{"all":true,"path":"a"}'],
    ['extended by an undeclared default', '{"force":false,"path":"a"}'],
    ['changed in another argument', '{"all":false,"path":"b"}'],
    ['lacking an argument', '{"all":false}'],
    ['extended by a property that every object inherits', '{"constructor":false,"path":"a"}'],
    ['not an object', '[1]'],
  ])('have another meaning when they are %s', (_, echoed) => {
    expect(same(echoed)).toBe(false);
  });

  it('have another meaning when a default replaces a sampled value', () => {
    expect(same('{"path":"a","all":false}', '{"path":"a","all":true}')).toBe(false);
  });

  it('have another meaning when a number differs in a digit that a double does not hold', () => {
    expect(same('{"n": 9007199254740993}', '{"n":9007199254740993}')).toBe(true);
    expect(same('{"n": 9007199254740992}', '{"n":9007199254740993}')).toBe(false);
  });

  it('have another meaning when only another tool, or no schema, declares the added default', () => {
    expect(same('{"all":false,"path":"a"}', '{"path":"a"}', TOOLS, 'Write')).toBe(false);
    expect(same('{"all":false,"path":"a"}', '{"path":"a"}', [])).toBe(false);
  });
});
