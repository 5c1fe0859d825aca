import { FloeError } from '../core/errors.ts';

/** A JSON Schema: an object of keywords, or a boolean that allows everything or nothing. */
export type JsonSchema = boolean | Readonly<Record<string, unknown>>;

/** Comparisons that one check may take. Schemas come from clients, and references let a short one ask for endless work. */
const MAX_STEPS = 100_000;

/** Schemas within schemas; deeper than any reply, and far from the end of the call stack. */
const MAX_DEPTH = 200;

/**
 * Whether `value` satisfies `schema`. Knows the keywords that generated schemas are made of: `type`, `enum`, `const`,
 * `properties`, `required`, `additionalProperties`, `items`, `prefixItems`, the bounds of numbers and lengths, `allOf`,
 * `anyOf`, `oneOf`, `not`, and `$ref` within the schema. Others, `pattern` and `format` among them, bound nothing.
 * Throws `engine_rejected` for a reference that leads nowhere, and for a schema that takes too long to check.
 */
export function satisfies(value: unknown, schema: JsonSchema): boolean {
  return new SchemaCheck(schema).holds(value, schema);
}

type Keywords = Readonly<Record<string, unknown>>;

class SchemaCheck {
  private readonly root: JsonSchema;
  private steps = 0;
  private depth = 0;

  constructor(root: JsonSchema) {
    this.root = root;
  }

  holds(value: unknown, schema: unknown): boolean {
    if (++this.steps > MAX_STEPS || this.depth === MAX_DEPTH) {
      throw new FloeError('engine_rejected', 'the JSON schema takes too long to check');
    }
    if (typeof schema === 'boolean') return schema;
    if (!isObject(schema)) throw new FloeError('engine_rejected', 'a JSON schema must be an object or a boolean');
    this.depth++;
    const holds =
      typeHolds(value, schema.type) &&
      this.listed(value, schema) &&
      boundsHold(value, schema) &&
      (!isObject(value) || this.object(value, schema)) &&
      (!Array.isArray(value) || this.array(value, schema)) &&
      this.combined(value, schema);
    this.depth--;
    return holds;
  }

  private listed(value: unknown, { enum: choices, const: only }: Keywords): boolean {
    if (only !== undefined && !equal(value, only)) return false;
    return !Array.isArray(choices) || choices.some((choice) => equal(value, choice));
  }

  private object(value: Readonly<Record<string, unknown>>, schema: Keywords): boolean {
    const properties = isObject(schema.properties) ? schema.properties : {};
    const required = Array.isArray(schema.required) ? schema.required : [];
    if (!required.every((name) => typeof name === 'string' && Object.hasOwn(value, name))) return false;
    return Object.entries(value).every(([name, field]) => {
      if (Object.hasOwn(properties, name)) return this.holds(field, properties[name]);
      return schema.additionalProperties === undefined || this.holds(field, schema.additionalProperties);
    });
  }

  private array(value: readonly unknown[], schema: Keywords): boolean {
    const first = Array.isArray(schema.prefixItems) ? schema.prefixItems : [];
    return value.every((item, index) => {
      if (index < first.length) return this.holds(item, first[index]);
      return schema.items === undefined || this.holds(item, schema.items);
    });
  }

  private combined(value: unknown, schema: Keywords): boolean {
    const count = (list: unknown): number | null =>
      Array.isArray(list) ? list.filter((part) => this.holds(value, part)).length : null;
    if (schema.$ref !== undefined && !this.holds(value, this.target(schema.$ref))) return false;
    if (Array.isArray(schema.allOf) && !schema.allOf.every((part) => this.holds(value, part))) return false;
    if (count(schema.anyOf) === 0) return false;
    if ((count(schema.oneOf) ?? 1) !== 1) return false;
    return schema.not === undefined || !this.holds(value, schema.not);
  }

  /** What a reference such as `#/$defs/step` names. */
  private target(reference: unknown): unknown {
    let found: unknown = this.root;
    const path = typeof reference === 'string' && reference.startsWith('#') ? reference.slice(1).split('/') : [];
    for (const name of path.slice(1).map(unescaped)) {
      found = (isObject(found) || Array.isArray(found)) && Object.hasOwn(found, name) ? Reflect.get(found, name) : null;
    }
    if (path[0] !== '' || found === null) {
      throw new FloeError('engine_rejected', `the JSON schema has no ${String(reference)}`);
    }
    return found;
  }
}

function unescaped(part: string): string {
  return part.replaceAll('~1', '/').replaceAll('~0', '~');
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function typeHolds(value: unknown, type: unknown): boolean {
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
      return isObject(value);
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

function boundsHold(value: unknown, schema: Keywords): boolean {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema;
  if (typeof value === 'number') {
    return (
      !(typeof minimum === 'number' && value < minimum) &&
      !(typeof maximum === 'number' && value > maximum) &&
      !(typeof exclusiveMinimum === 'number' && value <= exclusiveMinimum) &&
      !(typeof exclusiveMaximum === 'number' && value >= exclusiveMaximum)
    );
  }
  if (typeof value === 'string') return lengthHolds([...value].length, schema.minLength, schema.maxLength);
  if (Array.isArray(value)) return lengthHolds(value.length, schema.minItems, schema.maxItems);
  return true;
}

function lengthHolds(length: number, min: unknown, max: unknown): boolean {
  return !(typeof min === 'number' && length < min) && !(typeof max === 'number' && length > max);
}

/** JSON values that say the same; the order of an object's keys does not count. */
function equal(a: unknown, b: unknown): boolean {
  if (Array.isArray(a) || Array.isArray(b)) {
    return Array.isArray(a) && Array.isArray(b) && a.length === b.length && a.every((item, i) => equal(item, b[i]));
  }
  if (!isObject(a) || !isObject(b)) return a === b;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && equal(a[key], b[key]));
}
