import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { checkArguments } from '../../src/tools/checked-arguments.ts';
import { type AnyTool, defineTool } from '../../src/tools/tool.ts';

const rest = { name: 'move', description: 'moves', effect: 'none' as const, run: async () => 'moved' };
const SCHEMAS = {
  zod: defineTool({ ...rest, parameters: z.object({ steps: z.int().min(1), by: z.enum(['foot', 'car']) }) }) as AnyTool,
  'JSON Schema': defineTool({
    ...rest,
    parameters: {
      type: 'object',
      properties: { steps: { type: 'integer', minimum: 1 }, by: { enum: ['foot', 'car'] } },
      required: ['steps', 'by'],
    },
  }) as AnyTool,
};

describe.each(Object.entries(SCHEMAS))('arguments of a tool with a schema of %s', (_, tool) => {
  it('are accepted when they fit', () => {
    expect(checkArguments(tool, { steps: 2, by: 'car' })).toEqual({ args: { steps: 2, by: 'car' } });
  });

  it.each([
    ['a wrong type', { steps: 'two', by: 'car' }, /steps/],
    ['a number that is too small', { steps: 0, by: 'car' }, /steps/],
    ['another word', { steps: 1, by: 'boat' }, /by/],
    ['a missing field', { steps: 1 }, /by/],
  ])('are refused with the field for %s', (_, args, problem) => {
    expect(checkArguments(tool, args)).toEqual({ problem: expect.stringMatching(problem) });
  });
});
