import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { sameIds, sharedLength } from '../../src/tokens/sequence.ts';

/** Generates two sequences with a common beginning. They start at different offsets in their arrays. */
const pair = fc.record({
  shared: fc.array(fc.nat({ max: 3 }), { maxLength: 400 }),
  aRest: fc.array(fc.nat({ max: 1 }), { maxLength: 60 }),
  bRest: fc.array(fc.nat({ max: 1 }), { maxLength: 60 }),
  aMargin: fc.nat({ max: 5 }),
  bMargin: fc.nat({ max: 5 }),
});

function behind(margin: number, ...parts: number[][]): Int32Array {
  return Int32Array.from([...Array.from({ length: margin }, () => 9), ...parts.flat()]);
}

describe('the comparison of id sequences', () => {
  it('returns the index of the first difference as shared length', () => {
    fc.assert(
      fc.property(pair, ({ shared, aRest, bRest, aMargin, bMargin }) => {
        const a = behind(aMargin, shared, aRest);
        const b = behind(bMargin, shared, bRest);
        let expected = 0;
        const shorter = Math.min(a.length - aMargin, b.length - bMargin);
        while (expected < shorter && a[aMargin + expected] === b[bMargin + expected]) expected++;
        expect(sharedLength(a, aMargin, a.length, b, bMargin, b.length)).toBe(expected);
        const half = shared.length >> 1;
        expect(sharedLength(a, aMargin, aMargin + half, b, bMargin, b.length)).toBe(Math.min(half, expected));
        expect(sameIds(a, aMargin, b, bMargin, expected)).toBe(true);
        expect(sameIds(a, aMargin, b, bMargin, expected + 1)).toBe(false);
      }),
      { numRuns: 1000 },
    );
  });

  it('compares views of one buffer by their content, wherever they begin', () => {
    const small = fc.integer({ min: 0, max: 1 });
    fc.assert(
      fc.property(
        fc.array(small, { minLength: 8, maxLength: 120 }),
        fc.array(fc.nat(), { minLength: 6, maxLength: 6 }),
        (ids, picks) => {
          const whole = Int32Array.from(ids);
          const [p0 = 0, p1 = 0, p2 = 0, p3 = 0, p4 = 0, p5 = 0] = picks;
          const a = whole.subarray(p0 % 4);
          const b = whole.subarray(p1 % 4, whole.length - (p2 % 4));
          const aFrom = p3 % (a.length + 1);
          const bFrom = p4 % (b.length + 1);
          const longest = Math.min(a.length - aFrom, b.length - bFrom);
          let expected = 0;
          while (expected < longest && a[aFrom + expected] === b[bFrom + expected]) expected++;
          expect(sharedLength(a, aFrom, a.length, b, bFrom, b.length)).toBe(expected);
          const count = p5 % (longest + 2);
          expect(sameIds(a, aFrom, b, bFrom, count)).toBe(count <= expected);
        },
      ),
      { numRuns: 1000 },
    );
  });
});
