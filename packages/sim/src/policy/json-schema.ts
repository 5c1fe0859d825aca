import { canonicalJson, FloeError, isRecord } from '@floe-rl/core';

/** A JSON Schema: an object of keywords, or a boolean that allows every value or none. */
export type JsonSchema = boolean | Readonly<Record<string, unknown>>;

/** Maximum number of steps of one schema check. Schemas come from clients, and references can make the check of a short schema endless. */
const MAX_STEPS = 100_000;

/** Greatest depth of nested schemas in one check: greater than any reply needs, and far below the limit of the call stack. */
const MAX_DEPTH = 200;

/**
 * Whether `value` satisfies `schema`. Supports the keywords that generated schemas use: `type`, `enum`, `const`,
 * `properties`, `required`, `additionalProperties`, `items`, `prefixItems`, the bounds of numbers and lengths, `allOf`,
 * `anyOf`, `oneOf`, `not`, and `$ref` within the schema. Other keywords, such as `pattern` and `format`, are ignored.
 * Throws `engine_rejected` for a reference that does not resolve, an unknown type, and a schema that takes too long to check.
 */
export function satisfies(value: unknown, schema: JsonSchema): boolean {
  return new SchemaCheck(schema).satisfies(value, schema);
}

type Keywords = Readonly<Record<string, unknown>>;

class SchemaCheck {
  private readonly root: JsonSchema;
  private steps = 0;
  private depth = 0;

  constructor(root: JsonSchema) {
    this.root = root;
  }

  satisfies(value: unknown, schema: unknown): boolean {
    if (++this.steps > MAX_STEPS || this.depth === MAX_DEPTH) {
      throw new FloeError('engine_rejected', 'the JSON schema takes too long to check');
    }
    if (typeof schema === 'boolean') return schema;
    if (!isRecord(schema)) throw new FloeError('engine_rejected', 'a JSON schema must be an object or a boolean');
    this.depth++;
    const isSatisfied =
      satisfiesType(value, schema.type) &&
      satisfiesChoices(value, schema) &&
      satisfiesBounds(value, schema) &&
      (!isRecord(value) || this.satisfiesProperties(value, schema)) &&
      (!Array.isArray(value) || this.satisfiesItems(value, schema)) &&
      this.satisfiesCombinations(value, schema);
    this.depth--;
    return isSatisfied;
  }

  private satisfiesProperties(value: Readonly<Record<string, unknown>>, schema: Keywords): boolean {
    const properties = isRecord(schema.properties) ? schema.properties : {};
    const required = Array.isArray(schema.required) ? schema.required : [];
    if (!required.every((name) => typeof name === 'string' && Object.hasOwn(value, name))) return false;
    return Object.entries(value).every(([name, field]) => {
      if (Object.hasOwn(properties, name)) return this.satisfies(field, properties[name]);
      return schema.additionalProperties === undefined || this.satisfies(field, schema.additionalProperties);
    });
  }

  private satisfiesItems(value: readonly unknown[], schema: Keywords): boolean {
    const first = Array.isArray(schema.prefixItems) ? schema.prefixItems : [];
    return value.every((item, index) => {
      if (index < first.length) return this.satisfies(item, first[index]);
      return schema.items === undefined || this.satisfies(item, schema.items);
    });
  }

  private satisfiesCombinations(value: unknown, schema: Keywords): boolean {
    const count = (list: unknown): number | null =>
      Array.isArray(list) ? list.filter((part) => this.satisfies(value, part)).length : null;
    if (schema.$ref !== undefined && !this.satisfies(value, this.resolve(schema.$ref))) return false;
    if (Array.isArray(schema.allOf) && !schema.allOf.every((part) => this.satisfies(value, part))) return false;
    if (count(schema.anyOf) === 0) return false;
    if ((count(schema.oneOf) ?? 1) !== 1) return false;
    return schema.not === undefined || !this.satisfies(value, schema.not);
  }

  /** Returns the schema to which a reference such as `#/$defs/step` points. */
  private resolve(reference: unknown): unknown {
    let target: unknown = this.root;
    const path = typeof reference === 'string' && reference.startsWith('#') ? reference.slice(1).split('/') : [];
    for (const name of path.slice(1).map(unescapePointer)) {
      target =
        (isRecord(target) || Array.isArray(target)) && Object.hasOwn(target, name) ? Reflect.get(target, name) : null;
    }
    if (path[0] !== '' || target === null) {
      throw new FloeError('engine_rejected', `the JSON schema has no ${String(reference)}`);
    }
    return target;
  }
}

function unescapePointer(part: string): string {
  return part.replaceAll('~1', '/').replaceAll('~0', '~');
}

function satisfiesChoices(value: unknown, { enum: choices, const: only }: Keywords): boolean {
  if (only !== undefined && !isEqualJson(value, only)) return false;
  return !Array.isArray(choices) || choices.some((choice) => isEqualJson(value, choice));
}

function satisfiesType(value: unknown, type: unknown): boolean {
  if (type === undefined) return true;
  return (Array.isArray(type) ? type : [type]).some((name) => isOfType(value, name));
}

function isOfType(value: unknown, name: unknown): boolean {
  switch (name) {
    case 'null':
      return value === null;
    case 'array':
      return Array.isArray(value);
    case 'object':
      return isRecord(value);
    case 'integer':
      return Number.isInteger(value);
    case 'string':
    case 'number':
    case 'boolean':
      return typeof value === name;
    default:
      throw new FloeError('engine_rejected', `the JSON schema has an unknown type ${JSON.stringify(name)}`);
  }
}

function satisfiesBounds(value: unknown, schema: Keywords): boolean {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema;
  if (typeof value === 'number') {
    return (
      !(typeof minimum === 'number' && value < minimum) &&
      !(typeof maximum === 'number' && value > maximum) &&
      !(typeof exclusiveMinimum === 'number' && value <= exclusiveMinimum) &&
      !(typeof exclusiveMaximum === 'number' && value >= exclusiveMaximum)
    );
  }
  if (typeof value === 'string') return isLengthWithin([...value].length, schema.minLength, schema.maxLength);
  if (Array.isArray(value)) return isLengthWithin(value.length, schema.minItems, schema.maxItems);
  return true;
}

function isLengthWithin(length: number, min: unknown, max: unknown): boolean {
  return !(typeof min === 'number' && length < min) && !(typeof max === 'number' && length > max);
}

/** Whether two JSON values are equal; the order of an object's keys does not matter. */
function isEqualJson(a: unknown, b: unknown): boolean {
  return canonicalJson(a) === canonicalJson(b);
}
