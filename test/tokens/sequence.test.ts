import fc from 'fast-check';
import { expect, test } from 'vitest';
import { sameIds, sharedLength } from '../../src/tokens/sequence.ts';

/** Two sequences that agree for a while, each behind a margin of its own. */
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

test('the shared length is where two sequences first differ', () => {
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
