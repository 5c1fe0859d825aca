import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { canonicalJson } from '../src/canonical-json.ts';

/** Returns a copy of `value` in which the keys of every object are in the opposite order. */
function withKeysReversed(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map(withKeysReversed);
  return Object.fromEntries(
    Object.entries(value)
      .reverse()
      .map(([key, inner]) => [key, withKeysReversed(inner)]),
  );
}

describe('canonicalJson', () => {
  it('sorts the keys of nested objects and keeps the order of arrays', () => {
    expect(canonicalJson({ b: [{ z: 1, y: 2 }, 3], a: null })).toBe('{"a":null,"b":[{"y":2,"z":1},3]}');
  });

  it('leaves out keys whose value is undefined', () => {
    expect(canonicalJson({ b: undefined, a: 1 })).toBe('{"a":1}');
  });

  it('does not depend on the order of keys and keeps the value', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const text = canonicalJson(value);
        expect(canonicalJson(withKeysReversed(value))).toBe(text);
        expect(JSON.parse(text)).toEqual(JSON.parse(JSON.stringify(value)));
      }),
    );
  });
});
