// Request bodies that no harness sends, as fast-check arbitraries: any JSON value, and real requests with a few mistakes.

import type { DialectName } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { HISTORIES } from '../../bench/dialects/histories.ts';

/** Names and values that occur in real requests. With these, random bodies pass the first checks and reach later ones. */
const word = fc.constantFrom(
  ...['type', 'role', 'content', 'text', 'user', 'assistant', 'system', 'developer', 'tool', 'tool_result', 'tool_use'],
  ...['thinking', 'image', 'image_url', 'source', 'base64', 'url', 'input', 'id', 'name', 'function', 'arguments'],
  ...['tool_calls', 'tool_call_id', 'tool_use_id', 'input_schema', 'parameters', 'custom', 'auto', 'any'],
  ...['contents', 'parts', 'functionCall', 'functionResponse', 'model', 'instructions', 'message', 'reasoning'],
  ...['function_call', 'function_call_output', 'call_id', 'output', 'namespace', 'args', 'response', 'inlineData'],
  ...['__proto__', 'constructor', 'toString', '__unparsedToolInput'],
);
const { value } = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.oneof(word, fc.string({ unit: 'binary' }), fc.integer(), fc.double(), fc.boolean(), fc.constant(null)),
    fc.array(tie('value'), { maxLength: 4 }),
    fc.dictionary(word, tie('value'), { maxKeys: 5 }),
  ),
}));
/**
 * Returns an arbitrary that usually gives a value of `valid`, and rarely any other value. A body with one wrong field passes the checks of
 * all fields before it.
 */
const mostly = (valid: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> =>
  fc.oneof({ weight: 30, arbitrary: valid }, { weight: 1, arbitrary: value });
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
const messageLike = fc.record(
  {
    model: mostly(fc.constant('policy')),
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
);

const edit = fc.record({
  at: fc.nat(),
  how: fc.constantFrom('replace', 'remove', 'repeat', 'rename'),
  value,
  key: word,
});

type Edit = { readonly at: number; readonly how: string; readonly value: unknown; readonly key: string };

/** Returns an arbitrary of realistic requests in this dialect, with one to three turns and up to three random edits. */
function edited(dialect: DialectName): fc.Arbitrary<unknown> {
  return fc.tuple(fc.integer({ min: 1, max: 3 }), fc.array(edit, { maxLength: 3 })).map(([turns, edits]) => {
    const body: object = JSON.parse(JSON.stringify(HISTORIES[dialect](turns)));
    for (const one of edits) apply(body, one);
    return body;
  });
}

function apply(body: object, { at, how, value: replacement, key }: Edit): void {
  const fields = fieldsIn(body);
  const field = fields[at % fields.length];
  if (field === undefined) return;
  const { parent, name } = field;
  const old: unknown = Reflect.get(parent, name);
  if (how === 'replace') set(parent, name, replacement);
  else if (how === 'repeat' && Array.isArray(parent)) parent.splice(Number(name), 0, old);
  else if (how === 'remove' && Array.isArray(parent)) parent.splice(Number(name), 1);
  else {
    if (how === 'rename' && !Array.isArray(parent)) set(parent, key, old);
    Reflect.deleteProperty(parent, name);
  }
}

/** Sets an own property even when its name is `__proto__`, as JSON.parse does. */
function set(parent: object, name: string, value: unknown): void {
  Object.defineProperty(parent, name, { value, writable: true, enumerable: true, configurable: true });
}

/** Fields that hold tool schemas. They are not edited: they are most of a request's text, and no dialect parses them. */
const SCHEMA_FIELDS = ['input_schema', 'parameters', 'parametersJsonSchema'];

type Field = { readonly parent: object; readonly name: string };

/** Returns all fields and elements of a body, except those inside tool schemas. */
function fieldsIn(node: object): Field[] {
  return Object.entries(node).flatMap(([name, value]: [string, unknown]) => [
    { parent: node, name },
    ...(SCHEMA_FIELDS.includes(name) || typeof value !== 'object' || value === null ? [] : fieldsIn(value)),
  ]);
}

/** Returns an arbitrary of request bodies that are mostly invalid in this dialect. They are not serialized to JSON yet. */
export function strangeBody(dialect: DialectName): fc.Arbitrary<unknown> {
  return fc.oneof(
    { weight: 1, arbitrary: value },
    { weight: 3, arbitrary: messageLike },
    { weight: 6, arbitrary: edited(dialect) },
  );
}
