import { z } from 'zod';

type JsonSchema = {
  readonly type?: string | readonly string[];
  readonly description?: string;
  readonly default?: unknown;
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly anyOf?: readonly JsonSchema[];
  readonly oneOf?: readonly JsonSchema[];
  readonly items?: JsonSchema;
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly additionalProperties?: JsonSchema | boolean;
  readonly required?: readonly string[];
};

/**
 * Documents the keys of a configuration file as the items of a Markdown list: path, type with default, and meaning. In a path, `[]` stands
 * for every entry of a list and `*` for any name. Keys that may be null are null by default, unless the list has another default. A key
 * without a description has no item when the keys below it have items.
 */
export function keyList(schema: z.ZodType): string[] {
  const json = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }) as JsonSchema;
  return items(json, '');
}

function items(schema: JsonSchema, path: string): string[] {
  const required = schema.required ?? [];
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => {
    const key = path === '' ? name : `${path}.${name}`;
    const byDefault = required.includes(name) && property.default === undefined ? 'required' : defaultOf(property);
    const value = [shapeOf(property), ...(byDefault === '' ? [] : [byDefault])].join(', ');
    const meaning = (property.description ?? '').replaceAll('\n', ' ');
    const item = `- \`${key}\` (${value})${meaning === '' ? '' : `: ${meaning}`}`;
    // The keys below `job` are left out: they are the same wherever `job` occurs, and the reference documents them once.
    const children = name === 'job' ? [] : below(property, key);
    const hasItem = children.length === 0 || property.description !== undefined || byDefault === 'required';
    return [...(hasItem ? [item] : []), ...children];
  });
}

function below(schema: JsonSchema, key: string): string[] {
  const { additionalProperties: others } = schema;
  const variants = (schema.oneOf ?? schema.anyOf ?? []).filter((variant) => variant.type !== 'null');
  return [
    ...items(schema, key),
    ...(schema.items === undefined ? [] : below(schema.items, `${key}[]`)),
    ...(typeof others === 'object' ? below(others, `${key}.*`) : []),
    ...variants.flatMap((variant) => {
      const kind = variant.properties?.kind?.const;
      return below(variant, kind === undefined ? key : `${key}(${String(kind)})`);
    }),
  ];
}

function shapeOf(schema: JsonSchema): string {
  if (schema.const !== undefined) return `\`${String(schema.const)}\``;
  if (schema.enum !== undefined) return schema.enum.map((value) => `\`${String(value)}\``).join(', ');
  const variants = schema.oneOf ?? schema.anyOf;
  if (variants !== undefined) return [...new Set(variants.map(shapeOf))].join(' or ');
  if (schema.type === 'array')
    return schema.items?.type === 'object' ? 'list' : `list of ${shapeOf(schema.items ?? {})}`;
  return [schema.type ?? 'any'].flat().join(' or ');
}

function defaultOf(schema: JsonSchema): string {
  const value = schema.default;
  if (value === undefined || typeof value === 'object') return '';
  return `default \`${String(value)}\``;
}
