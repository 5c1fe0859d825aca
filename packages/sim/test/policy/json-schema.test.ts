import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type JsonSchema, satisfies } from '../../src/policy/json-schema.ts';

const step: JsonSchema = {
  type: 'object',
  properties: { kind: { enum: ['run', 'stop'] }, next: { anyOf: [{ $ref: '#/$defs/step' }, { type: 'null' }] } },
  required: ['kind'],
  additionalProperties: false,
};
const linked: JsonSchema = { $defs: { step }, $ref: '#/$defs/step' };

function manyTimes(schema: JsonSchema): JsonSchema[] {
  return new Array<JsonSchema>(50).fill(schema);
}

/** Returns a schema that only JSON values equal to `value` satisfy. */
function shapeOf(value: unknown): JsonSchema {
  if (Array.isArray(value)) {
    return { type: 'array', prefixItems: value.map(shapeOf), items: false, minItems: value.length };
  }
  if (typeof value !== 'object' || value === null) return { const: value };
  const fields = Object.entries(value);
  return {
    type: 'object',
    properties: Object.fromEntries(fields.map(([name, field]) => [name, shapeOf(field)])),
    required: fields.map(([name]) => name),
    additionalProperties: false,
  };
}

describe('a JSON schema', () => {
  it.each([
    [{ type: 'object' }, {}, []],
    [{ type: ['string', 'null'] }, null, 1],
    [{ type: 'integer' }, 3, 3.5],
    [{ type: 'number' }, 3.5, '3'],
    [{ type: 'boolean' }, false, 0],
    [{ required: ['a'] }, { a: null }, { b: 1 }],
    [{ properties: { a: { type: 'string' } } }, { a: 'x', b: 1 }, { a: 1 }],
    [{ properties: { a: true }, additionalProperties: false }, { a: 1 }, { b: 1 }],
    [{ additionalProperties: { type: 'number' } }, { a: 1 }, { a: 'x' }],
    [{ enum: ['a', { b: [1] }] }, { b: [1] }, { b: [2] }],
    [{ const: { a: 1, b: 2 } }, { b: 2, a: 1 }, { a: 1 }],
    [{ items: { type: 'string' } }, ['a'], ['a', 1]],
    [{ prefixItems: [{ type: 'string' }], items: { type: 'number' } }, ['a', 1], [1, 1]],
    [{ minItems: 1, maxItems: 2 }, [1], []],
    [{ minLength: 2, maxLength: 2 }, '😀😀', '😀'],
    [{ minimum: 1, exclusiveMaximum: 2 }, 1, 2],
    [{ maximum: 2, exclusiveMinimum: 1 }, 2, 1],
    [{ allOf: [{ minimum: 1 }, { maximum: 3 }] }, 2, 4],
    [{ anyOf: [{ type: 'string' }, { minimum: 5 }] }, 6, 4],
    [{ oneOf: [{ type: 'string' }, { minLength: 2 }] }, 'a', 'ab'],
    [{ not: { type: 'null' } }, 1, null],
    [linked, { kind: 'run', next: { kind: 'stop', next: null } }, { kind: 'run', next: { kind: 'go' } }],
    [{ properties: { 'a/b': { const: 1 }, c: { $ref: '#/properties/a~1b' } } }, { c: 1 }, { c: 2 }],
  ] as [JsonSchema, unknown, unknown][])('%j is satisfied by %j and not by %j', (schema, good, bad) => {
    expect(satisfies(good, schema)).toBe(true);
    expect(satisfies(bad, schema)).toBe(false);
  });

  it('is satisfied by the value that it was derived from and by no other', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.jsonValue(), (value, other) => {
        // JSON has no negative zero. Converting the values by JSON.stringify and JSON.parse turns it into 0.
        const [a, b] = [value, other].map((each) => JSON.parse(JSON.stringify(each)));
        expect(satisfies(a, shapeOf(a))).toBe(true);
        expect(satisfies(b, shapeOf(a))).toBe(equalJson(a, b));
      }),
    );
  });

  it.each([
    [{ $ref: '#/$defs/none' }, /no #\/\$defs\/none/],
    [{ $ref: 'http://elsewhere/schema' }, /no http:/],
    [{ type: 'text' }, /unknown type "text"/],
    [{ properties: { a: 3 } }, /must be an object or a boolean/],
    [{ $ref: '#' }, /too long/],
    [{ anyOf: manyTimes({ anyOf: manyTimes({ anyOf: manyTimes({ const: 1 }) }) }) }, /too long/],
  ] as [JsonSchema, RegExp][])('is refused when it is unusable (number %#)', (schema, words) => {
    expect(() => satisfies({ a: 1 }, schema)).toThrow(words);
  });
});

function equalJson(a: unknown, b: unknown): boolean {
  const sorted = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(sorted);
    if (typeof value !== 'object' || value === null) return value;
    return Object.entries(value)
      .sort(([x], [y]) => (x < y ? -1 : 1))
      .map(([key, field]) => ({ key, field: sorted(field) }));
  };
  return (
    JSON.stringify([Array.isArray(a), typeof a, sorted(a)]) === JSON.stringify([Array.isArray(b), typeof b, sorted(b)])
  );
}
