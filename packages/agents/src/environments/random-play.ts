import { pickOne, type RandomSource, randomBelow } from '@floe-rl/core';
import type { AssistantMessage, ChatTool, ToolCall } from '@floe-rl/core/schema';
import { callReply } from './action.ts';

/** The parts of a JSON Schema from which values are made. */
type Schema = {
  readonly type?: unknown;
  readonly enum?: readonly unknown[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly properties?: Readonly<Record<string, Schema>>;
};

const LETTERS = 'abcdefghijklmnopqrstuvwxyz';
/** Maximum number of letters of a random text. */
const MAX_LETTERS = 12;

/** Returns a random value that fits a schema, except its pattern. */
function randomValue(schema: Schema, random: RandomSource): unknown {
  if (schema.enum !== undefined && schema.enum.length > 0) return pickOne(random, schema.enum);
  if (schema.type === 'boolean') return random() < 0.5;
  if (schema.type === 'integer' || schema.type === 'number') {
    const { minimum = 0, maximum = 100 } = schema;
    return minimum + randomBelow(random, Math.max(1, maximum - minimum + 1));
  }
  if (schema.type === 'array') return [];
  if (schema.type === 'object') return randomArguments(schema, random);
  const { minLength = 1, maxLength = MAX_LETTERS } = schema;
  const length = Math.max(minLength, Math.min(maxLength, MAX_LETTERS));
  return Array.from({ length }, () => pickOne(random, [...LETTERS])).join('');
}

function randomArguments({ properties = {} }: Schema, random: RandomSource): Record<string, unknown> {
  return Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, randomValue(schema, random)]));
}

/** Returns a reply that calls one of the tools with random arguments. `index` is the number of the reply in its episode. */
export function randomReply(tools: readonly ChatTool[], random: RandomSource, index: number): AssistantMessage {
  if (tools.length === 0)
    return { role: 'assistant', content: pickOne(random, [...LETTERS, '1', '2', '3', 'yes', 'no']) };
  const { name, parameters = {} } = pickOne(random, tools).function;
  return callReply(`call_${index}`, name, randomArguments(parameters, random));
}

/** Texts that programs tend to handle wrongly. */
const HOSTILE_TEXTS: readonly string[] = [
  '',
  ' ',
  '\u0000',
  '\ud800',
  'a\udfffb',
  '{"',
  '[]',
  'null',
  '"up"',
  '{}',
  '{"direction": null}',
  '{"direction": ["up"]}',
  '{"__proto__": {"x": 1}}',
  '{"constructor": 1}',
  `${'['.repeat(5_000)}${']'.repeat(5_000)}`,
  `{"direction": "${'x'.repeat(100_000)}"}`,
  '<answer>',
  '</answer><answer>',
  '\\boxed{',
  '\\boxed{\\boxed{up}',
  "'; drop table orders; --",
  '9'.repeat(400),
  '-0',
  'NaN',
  '🧊'.repeat(50),
  'y'.repeat(300_000),
];

const HOSTILE_NAMES: readonly string[] = [
  '',
  'constructor',
  '__proto__',
  'MOVE',
  'move ',
  '\ud83d',
  'toString',
  'z'.repeat(20_000),
];

const HOSTILE_VALUES: readonly unknown[] = [
  null,
  true,
  -1,
  1e300,
  0.5,
  '',
  'up ',
  '\ud800x',
  [],
  {},
  ['up'],
  { value: 'up' },
];

/** Returns a reply that is broken in one of many ways: its text, or the number, names or arguments of its tool calls. */
export function malformedReply(tools: readonly ChatTool[], random: RandomSource): AssistantMessage {
  const content = random() < 0.2 ? null : pickOne(random, HOSTILE_TEXTS);
  if (random() < 0.25) return { role: 'assistant', content };
  const count = random() < 0.1 ? 40 : randomBelow(random, 4);
  return {
    role: 'assistant',
    content,
    tool_calls: Array.from({ length: count }, (_, i) => malformedCall(tools, random, i)),
  };
}

function malformedCall(tools: readonly ChatTool[], random: RandomSource, index: number): ToolCall {
  const tool = tools.length === 0 ? undefined : pickOne(random, tools).function;
  const name = tool === undefined || random() < 0.2 ? pickOne(random, HOSTILE_NAMES) : tool.name;
  const id = random() < 0.1 ? pickOne(random, ['', 'call_0', '\ud800']) : `call_${index}`;
  const args = random() < 0.5 ? pickOne(random, HOSTILE_TEXTS) : wrongArguments(tool?.parameters ?? {}, random);
  return { id, type: 'function', function: { name, arguments: args } };
}

/** Returns arguments with one missing, unknown or of the wrong type, as JSON that may be cut. */
function wrongArguments(schema: Schema, random: RandomSource): string {
  const args = randomArguments(schema, random);
  const name = pickOne(random, [...Object.keys(args), 'unknown']);
  if (random() < 0.3) delete args[name];
  else args[name] = pickOne(random, HOSTILE_VALUES);
  const json = JSON.stringify(args);
  return random() < 0.2 ? json.slice(0, randomBelow(random, json.length)) : json;
}
