import {
  auditSchema,
  chatMessageSchema,
  chatToolSchema,
  completionRecordSchema,
  sessionResultSchema,
  traceSchema,
  trajectorySchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import { MEANINGS } from './result-meanings.ts';

type JsonSchema = {
  readonly type?: string | readonly string[];
  readonly description?: string;
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly anyOf?: readonly JsonSchema[];
  readonly oneOf?: readonly JsonSchema[];
  readonly items?: JsonSchema;
  readonly prefixItems?: readonly JsonSchema[];
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly propertyNames?: JsonSchema;
  readonly additionalProperties?: JsonSchema | boolean;
  readonly required?: readonly string[];
};

/** A part of the page. `elsewhere` has the fields whose own fields are described in another place, with a link to it. */
type Section = {
  readonly title: string;
  readonly about: string;
  readonly schema: z.ZodType;
  readonly elsewhere: Readonly<Record<string, string>>;
};

const MESSAGE = '[message](#message)';
const TOOL = '[tool](#tool)';
const TRACE = '[trace](#trace)';
const AUDIT = '[audit](#audit)';

const SECTIONS: readonly Section[] = [
  {
    title: 'Result',
    about:
      'What `GET /rollout/results`, callbacks and batches contain for each session. Lists and `GET /rollout/task/{id}` have the same without `cursor` and ' +
      '`trajectory`: the summary.',
    schema: sessionResultSchema,
    elsewhere: { trajectory: '[trajectory](#trajectory)', audit: AUDIT },
  },
  {
    title: 'Trajectory',
    about:
      '`null` in a result for which no node delivered token data. [Builders](builders.md) make it of the completions.',
    schema: trajectorySchema,
    elsewhere: { 'traces[]': TRACE, audit: AUDIT },
  },
  {
    title: 'Trace',
    about:
      'One token sequence. Arrays over the response have one entry for each of its tokens. Keys of `metadata` are in [builders](builders.md#fields-of-a-trace).',
    schema: traceSchema,
    elsewhere: { 'prompt_messages[]': MESSAGE, 'response_messages[]': MESSAGE, 'tools[]': TOOL },
  },
  {
    title: 'Audit',
    about: 'Sums over the session, which must match; [how they are checked](builders.md#the-audit).',
    schema: auditSchema,
    elsewhere: {},
  },
  {
    title: 'Completion record',
    about:
      'One model call, as `GET /sessions/{id}/completions` returns it. A record repeats nothing that an earlier one has: `base` names it.',
    schema: completionRecordSchema,
    elsewhere: {
      'request.messages[]': MESSAGE,
      'request.tools[]': TOOL,
      'request.sampling_asked.response_format': "as in OpenAI's API",
      'request.tool_choice': "as in OpenAI's API",
      'request.sampling': '[sampling](tasks.md#sampling)',
      'version_spans[]': TRACE,
      routed_experts: TRACE,
      message: MESSAGE,
    },
  },
  {
    title: 'Message',
    about: 'The form of messages in traces and records, whatever the dialect of the agent.',
    schema: chatMessageSchema,
    elsewhere: {},
  },
  { title: 'Tool', about: 'A tool that a request offers.', schema: chatToolSchema, elsewhere: {} },
];

/** Renders docs/result-fields.md. Throws an Error when a field has no meaning, or a meaning has no field. */
export function resultFieldsPage(): string {
  const used = new Set<string>();
  const lists = SECTIONS.flatMap((section) => [
    `## ${section.title}`,
    '',
    section.about,
    '',
    ...items(section, used),
    '',
  ]);
  const unused = Object.keys(MEANINGS).filter((key) => !used.has(key));
  if (unused.length > 0)
    throw new Error(
      `tools/reference/result-meanings.ts: no such field, or described by its schema: ${unused.join(', ')}`,
    );
  return [
    '# Fields of a result',
    '',
    'Generated from the schemas of `packages/core/src/schema/` by `npm run generate`. `[]` means each entry of a list, `*` any name, and *optional* that',
    'the field may be absent; all others are always there. [Results](results.md) describes how to read them, [outcomes](outcomes.md) what they mean for',
    'training.',
    '',
    ...lists,
  ].join('\n');
}

function items({ title, schema, elsewhere }: Section, used: Set<string>): string[] {
  const json = z.toJSONSchema(schema, { io: 'output', unrepresentable: 'any' }) as JsonSchema;
  const rows = new Map<string, { shapes: string; meaning: string; readonly isRequired: boolean }>();
  const add = (path: string, field: JsonSchema, isRequired: boolean): void => {
    const known = rows.get(path);
    if (known !== undefined) {
      // Variants of an object have the field, too, for instance with another constant.
      if (!known.shapes.split(' or ').includes(shapeOf(field))) known.shapes += ` or ${shapeOf(field)}`;
    } else {
      const key = `${title} ${path}`;
      const meaning = field.description ?? MEANINGS[key];
      if (meaning === undefined) throw new Error(`tools/reference/result-meanings.ts: "${key}" has no meaning`);
      if (field.description === undefined) used.add(key);
      rows.set(path, { shapes: shapeOf(field), meaning, isRequired });
    }
    below(path, field);
  };
  const below = (path: string, field: JsonSchema): void => {
    const link = elsewhere[path];
    const row = rows.get(path.replace(/\[\]$/, ''));
    if (link !== undefined && row !== undefined) {
      row.meaning += ` (${link})`;
      return;
    }
    for (const [name, property] of Object.entries(field.properties ?? {})) {
      add(path === '' ? name : `${path}.${name}`, property, field.required?.includes(name) === true);
    }
    if (field.items !== undefined) below(`${path}[]`, field.items);
    if (typeof field.additionalProperties === 'object') below(`${path}.*`, field.additionalProperties);
    for (const variant of variantsOf(field)) below(path, variant);
  };
  below('', json);
  return [...rows].map(
    ([path, { shapes, meaning, isRequired }]) =>
      `- \`${path}\` (${shapes}${isRequired ? '' : ', optional'}): ${meaning}`,
  );
}

function variantsOf(schema: JsonSchema): readonly JsonSchema[] {
  return schema.oneOf ?? schema.anyOf ?? [];
}

function shapeOf(schema: JsonSchema): string {
  if (schema.const !== undefined) return `\`${String(schema.const)}\``;
  if (schema.enum !== undefined) return schema.enum.map((value) => `\`${String(value)}\``).join(', ');
  const variants = variantsOf(schema);
  if (variants.length > 0) return [...new Set(variants.map(shapeOf))].join(' or ');
  if (schema.prefixItems !== undefined)
    return `list of ${schema.prefixItems.length} ${shapeOf(schema.prefixItems[0] ?? {})}s`;
  if (schema.type === 'array') return `list of ${schema.items === undefined ? 'any' : shapeOf(schema.items)}`;
  if (typeof schema.additionalProperties === 'object' && schema.type === 'object') {
    const value = shapeOf(schema.additionalProperties);
    return value === 'any' ? 'object' : `object of ${value}`;
  }
  return [schema.type ?? 'any'].flat().join(' or ');
}
