import { isRecord } from '@floe-rl/core';
import type { JsonObject } from '../json-object.ts';

/**
 * Maps the type names of Google, which are upper case, to the type names of JSON Schema. JSON Schema has no upper-case type names, so the
 * conversion does not affect a schema that already is JSON Schema.
 */
const TYPES: ReadonlyMap<unknown, string> = new Map(
  ['string', 'number', 'integer', 'boolean', 'array', 'object', 'null'].map((name) => [name.toUpperCase(), name]),
);

/** Schema keywords with 64-bit integers as values, which Google's JSON encodes as strings. */
const COUNTS = new Set(['minItems', 'maxItems', 'minLength', 'maxLength', 'minProperties', 'maxProperties']);
/** Schema keywords that have an object as value, in which each key is a name and each value is a schema. */
const SCHEMAS_BY_NAME = new Set(['properties', 'patternProperties', '$defs', 'definitions', 'defs']);
/** Schema keywords with a list of schemas as value. */
const SCHEMA_LISTS = new Set(['anyOf', 'oneOf', 'allOf', 'prefixItems']);
/** Schema keywords with one schema as value. */
const SCHEMAS = new Set(['items', 'additionalProperties', 'not']);

/** Maps the snake_case spelling of keywords, which Google's parser accepts, to camelCase. */
const SPELLINGS: ReadonlyMap<string, string> = new Map(
  [...COUNTS, ...SCHEMA_LISTS, 'additionalProperties', 'propertyOrdering'].map((camel) => [
    camel.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    camel,
  ]),
);

/**
 * Converts a schema in Google's OpenAPI subset to JSON Schema. Type names become lower case, and `nullable` becomes the type `null`. Limits
 * that are written as strings, such as `"maxItems": "3"`, become numbers. Everything else is kept, so JSON Schema is returned unchanged.
 */
export function jsonSchemaOf(schema: JsonObject): JsonObject {
  const entries: [string, unknown][] = [];
  for (const [spelled, value] of Object.entries(schema)) {
    const key = SPELLINGS.get(spelled) ?? spelled;
    if (key === 'nullable' && typeof value === 'boolean') continue;
    if (key === 'type' && value === 'TYPE_UNSPECIFIED') continue;
    entries.push([key, convertedValue(key, value)]);
  }
  // The object is not built by assignment, because assigning to a field named `__proto__` would set the prototype.
  const plain = Object.fromEntries(entries);
  return schema.nullable === true ? withNull(plain) : plain;
}

function convertedValue(key: string, value: unknown): unknown {
  if (key === 'type') return Array.isArray(value) ? value.map(typeName) : typeName(value);
  if (COUNTS.has(key)) return typeof value === 'string' && /^\d{1,15}$/.test(value) ? Number(value) : value;
  if (SCHEMAS.has(key)) return subschema(value);
  if (SCHEMA_LISTS.has(key)) return Array.isArray(value) ? value.map(subschema) : value;
  if (SCHEMAS_BY_NAME.has(key) && isRecord(value)) {
    return Object.fromEntries(Object.entries(value).map(([name, schema]) => [name, subschema(schema)]));
  }
  return value;
}

function subschema(value: unknown): unknown {
  return isRecord(value) ? jsonSchemaOf(value) : value;
}

function typeName(value: unknown): unknown {
  return TYPES.get(value) ?? value;
}

function withNull(schema: JsonObject): JsonObject {
  const { type, anyOf, enum: values } = schema;
  const nullable = { ...schema };
  if (typeof type === 'string') nullable.type = type === 'null' ? type : [type, 'null'];
  else if (Array.isArray(type)) nullable.type = type.includes('null') ? type : [...type, 'null'];
  else if (Array.isArray(anyOf)) nullable.anyOf = [...anyOf, { type: 'null' }];
  if (Array.isArray(values) && !values.includes(null)) nullable.enum = [...values, null];
  return nullable;
}
