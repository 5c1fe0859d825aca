import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { FloeError } from '../../src/core/errors.ts';
import { plainContext } from '../../src/dialects/dialect.ts';
import { DIALECTS } from '../../src/dialects/registry.ts';
import { chatMessageSchema, chatToolSchema } from '../../src/schema/index.ts';

/** Names and values that occur in real requests, so that random bodies get further than the first check. */
const word = fc.constantFrom(
  ...['type', 'role', 'content', 'text', 'user', 'assistant', 'system', 'developer', 'tool', 'tool_result', 'tool_use'],
  ...['thinking', 'image', 'image_url', 'source', 'base64', 'url', 'input', 'id', 'name', 'function', 'arguments'],
  ...[
    'tool_calls',
    'tool_call_id',
    'tool_use_id',
    'input_schema',
    'parameters',
    'auto',
    'any',
    '__proto__',
    'constructor',
  ],
);
const { value } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.oneof(word, fc.string({ unit: 'binary' }), fc.integer(), fc.double(), fc.boolean(), fc.constant(null)),
    fc.array(tie('value'), { maxLength: 4 }),
    fc.dictionary(word, tie('value'), { maxKeys: 5 }),
  ),
}));
/** Now and then anything else: a body with one wrong field gets past all the checks before it. */
const mostly = <T>(valid: fc.Arbitrary<T>) =>
  fc.oneof({ weight: 30, arbitrary: valid }, { weight: 1, arbitrary: value as fc.Arbitrary<unknown> });
const text = mostly(fc.string());
const block = fc.oneof(
  fc.record({ type: fc.constant('text'), text }),
  fc.record({ type: fc.constant('image_url'), image_url: mostly(fc.record({ url: text })) }),
  fc.record({
    type: fc.constant('image'),
    source: mostly(fc.record({ type: fc.constant('base64'), media_type: text, data: text })),
  }),
  fc.record({ type: fc.constant('tool_result'), tool_use_id: text, content: mostly(fc.string()) }),
  fc.record({ type: fc.constant('tool_use'), id: text, name: text, input: mostly(fc.dictionary(word, value)) }),
  fc.record({ type: fc.constant('thinking'), thinking: text, signature: value }),
);
const call = fc.record({ id: text, function: mostly(fc.record({ name: text, arguments: text })) });
const message = fc.record(
  {
    role: mostly(fc.constantFrom('user', 'assistant', 'system', 'tool')),
    content: mostly(fc.oneof(fc.string(), fc.array(block, { maxLength: 3 }))),
    tool_call_id: text,
    tool_calls: mostly(fc.array(call, { maxLength: 2 })),
    reasoning_content: text,
  },
  { requiredKeys: ['role', 'content', 'tool_call_id'] },
);
const tool = fc.record({
  type: fc.constantFrom('function', 'custom', 'web_search'),
  name: text,
  function: mostly(fc.record({ name: text, parameters: fc.dictionary(word, value) })),
  input_schema: mostly(fc.dictionary(word, value)),
});
const body = fc.oneof(
  { weight: 1, arbitrary: value },
  {
    weight: 5,
    arbitrary: fc.record(
      {
        model: text,
        messages: mostly(fc.array(message, { minLength: 1, maxLength: 4 })),
        system: text,
        tools: mostly(fc.array(tool, { maxLength: 2 })),
        tool_choice: mostly(fc.constant(null)),
        max_tokens: mostly(fc.integer({ min: 1 })),
        stop: text,
        stream: mostly(fc.boolean()),
        thinking: value,
        output_config: value,
        response_format: mostly(fc.record({ type: text, json_schema: value })),
      },
      { requiredKeys: ['model', 'messages'] },
    ),
  },
);

describe.each(DIALECTS.map((dialect) => [dialect.name, dialect] as const))('any body at all, as %s', (_, dialect) => {
  test('is either refused with a client error or becomes a valid canonical request', () => {
    let accepted = 0;
    fc.assert(
      fc.property(body, (input) => {
        // As it comes from the wire: what JSON cannot say cannot occur.
        const foreign: unknown = JSON.parse(JSON.stringify(input) ?? 'null');
        try {
          const request = dialect.parseRequest(foreign, plainContext());
          for (const entry of request.messages) expect(chatMessageSchema.parse(entry)).toEqual(entry);
          for (const tool of request.tools) chatToolSchema.parse(tool);
          accepted++;
        } catch (error) {
          if (!FloeError.is(error)) throw error;
          expect(dialect.encodeError(error).status).toBe(400);
        }
      }),
      { numRuns: 5_000 },
    );
    expect(accepted).toBeGreaterThan(50);
  });
});
