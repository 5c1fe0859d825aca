import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { sameJson } from '../../../src/proxy/session/request-memory.ts';

/**
 * Generates values as JSON.parse returns them. They have few different keys and scalars, so that two values are often equal or almost
 * equal.
 */
const { value } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small' },
    fc.constantFrom(0, 1, '', 'a', '1', true, false, null, 'é'),
    fc.array(tie('value'), { maxLength: 3 }),
    fc.dictionary(fc.constantFrom('a', 'b', '1', '__proto__'), tie('value'), { maxKeys: 3 }),
  ),
}));
const parsed = value.map((drawn) => JSON.parse(JSON.stringify(drawn)) as unknown);

describe('the comparison of JSON values', () => {
  it('treats two values as equal exactly when their JSON texts are equal', () => {
    let same = 0;
    fc.assert(
      fc.property(parsed, parsed, (a, b) => {
        const expected = JSON.stringify(a) === JSON.stringify(b);
        if (expected) same++;
        expect(sameJson(a, b)).toBe(expected);
        expect(sameJson(a, JSON.parse(JSON.stringify(a)))).toBe(true);
      }),
      { numRuns: 3_000 },
    );
    expect(same).toBeGreaterThan(10);
  });

  it.each<[unknown, unknown]>([
    [
      { a: 1, b: 2 },
      { b: 2, a: 1 },
    ],
    [[], {}],
    [{}, []],
    [{ 0: 'a' }, ['a']],
    [[1], [1, 1]],
    [{ a: null }, {}],
    ['1', 1],
    [null, {}],
    [undefined, {}],
  ])('distinguishes %j from %j', (a, b) => {
    expect(sameJson(a, b)).toBe(false);
  });
});
