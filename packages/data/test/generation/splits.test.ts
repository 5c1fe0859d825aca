import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { assignSplits, parseSplits, type SplitRow } from '../../src/generation/splits.ts';

const rowsOf = (strata: readonly string[]): SplitRow[] =>
  strata.map((stratum, row) => ({ row, digest: `d${row}`, stratum }));

const countIn = (split: string, assigned: ReadonlyMap<number, string>, rows: readonly SplitRow[]): number =>
  rows.filter(({ row }) => assigned.get(row) === split).length;

describe('parseSplits', () => {
  it('parses names and shares, and scales shares that are rounded', () => {
    expect(parseSplits('train=0.9, test=0.1')).toEqual([
      { name: 'train', share: 0.9 },
      { name: 'test', share: 0.1 },
    ]);
    expect(parseSplits('a=.333,b=.333,c=.333')[0]?.share).toBeCloseTo(1 / 3);
  });

  it.each(['train', 'train=1,test=0', 'train=0.5,train=0.5', 'train=0.9,test=0.2', '../x=1', 'a=0.5'])(
    'refuses %j',
    (text) => {
      expect(() => parseSplits(text)).toThrow(expect.objectContaining({ code: 'bad_request' }));
    },
  );
});

describe('assignSplits', () => {
  const splits = parseSplits('train=0.9,test=0.1');

  it('assigns every row to exactly one split, in proportion to the shares', () => {
    const strata = fc.array(fc.constantFrom('a', 'b', 'c', 'd'), { maxLength: 300 });
    fc.assert(
      fc.property(
        strata,
        fc.integer(),
        fc.constantFrom('train=0.9,test=0.1', 'a=0.5,b=0.3,c=0.2'),
        (drawn, seed, text) => {
          const rows = rowsOf(drawn);
          const parts = parseSplits(text);
          const assigned = assignSplits(rows, parts, seed);
          expect(assigned.size).toBe(rows.length);
          for (const { name, share } of parts) {
            // Each of the four strata may add one row to a split whose share is too small for a row of that stratum.
            expect(Math.abs(countIn(name, assigned, rows) - share * rows.length)).toBeLessThanOrEqual(5);
          }
          for (const stratum of new Set(drawn)) {
            const members = rows.filter((row) => row.stratum === stratum);
            if (members.length < parts.length) continue;
            for (const { name } of parts) expect(countIn(name, assigned, members)).toBeGreaterThan(0);
          }
        },
      ),
    );
  });

  it('depends on the rows and the seed, and not on the order of the rows', () => {
    const rows = rowsOf(Array.from({ length: 100 }, (_, row) => `s${row % 3}`));
    const assigned = assignSplits(rows, splits, 1);
    expect(new Map([...assignSplits([...rows].reverse(), splits, 1)].sort(([a], [b]) => a - b))).toEqual(
      new Map([...assigned].sort(([a], [b]) => a - b)),
    );
    expect([...assignSplits(rows, splits, 2)].sort()).not.toEqual([...assigned].sort());
  });

  it('gives the shares to many strata with one row each', () => {
    const rows = rowsOf(Array.from({ length: 200 }, (_, row) => `s${row}`));
    expect(countIn('test', assignSplits(rows, splits, 0), rows)).toBe(20);
  });
});
