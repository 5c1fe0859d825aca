import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../tools/repository.ts';
import { EQUIVALENT_MUTANTS, isSameChange } from '../../verify/stryker/equivalent.ts';
import { draw, type Mutant } from '../../verify/stryker/mutants.ts';
import { countsOf, type Result, survivorsOf, survivorText } from '../../verify/stryker/results.ts';

const MUTANT: Mutant = {
  file: 'packages/capture/src/tokens/audit.ts',
  start: { line: 41, column: 8 },
  end: { line: 41, column: 13 },
  mutator: 'EqualityOperator',
  original: 'a < b',
  replacement: 'a <= b',
  line: 'if (a < b) return;',
  before: 'const b = 1;',
};

const results = (...statuses: readonly Result['status'][]): Result[] =>
  statuses.map((status) => ({ mutant: MUTANT, status }));

describe('draw', () => {
  /** Mutants of different lines, with two that have the same text. */
  const mutants = [...Array(500).keys(), 7].map((index) => ({ ...MUTANT, line: `if (a < ${index}) return;` }));

  it('draws as many mutants as requested or as there are, none of them twice', () => {
    fc.assert(
      fc.property(fc.nat(mutants.length - 1), fc.nat(600), fc.nat(), (size, count, seed) => {
        const drawn = draw(mutants.slice(-size - 1), count, seed);
        expect(new Set(drawn).size).toBe(Math.min(count, size + 1));
        expect(drawn.every((mutant) => mutants.includes(mutant))).toBe(true);
      }),
    );
  });

  it('draws the same mutants for the same seed, and others for another seed', () => {
    const drawn = draw(mutants, 20, 1);
    expect(draw(mutants, 20, 1)).toEqual(drawn);
    expect(draw(mutants, 20, 2)).not.toEqual(drawn);
  });

  it('draws the same mutants when mutants that were not drawn are removed from the sources', () => {
    const drawn = draw(mutants, 20, 1);
    const rest = mutants.filter((mutant, index) => drawn.includes(mutant) || index % 2 === 0);
    expect(draw(rest, 20, 1)).toEqual(drawn);
  });
});

describe('countsOf', () => {
  it('counts time limits and errors outside of tests as detected, and leaves equivalent mutants out of the score', () => {
    expect(countsOf(results('Killed', 'Timeout', 'RuntimeError', 'Survived', 'NoCoverage', 'equivalent'))).toEqual({
      sampled: 6,
      killed: 3,
      timedOut: 1,
      survived: 2,
      equivalent: 1,
      score: 60,
    });
  });

  it('never rounds the score up', () => {
    const killed = Array.from({ length: 8999 }, () => 'Killed' as const);
    const survived = Array.from({ length: 1001 }, () => 'Survived' as const);
    expect(countsOf(results(...killed, ...survived)).score).toBe(89.9);
  });
});

describe('the list of survivors', () => {
  it('contains the mutants that no test detected, with their place counted from 1', () => {
    const survivors = survivorsOf(results('Killed', 'NoCoverage', 'equivalent'));
    expect(survivors.map(({ mutant, status }) => survivorText(mutant, status))).toEqual([
      'packages/capture/src/tokens/audit.ts:42:9  a < b  ->  a <= b  (EqualityOperator, which no test runs)',
    ]);
  });
});

describe('isSameChange', () => {
  it('finds a change by its text when the lines before it have moved', () => {
    const moved = { ...MUTANT, start: { line: 90, column: 4 }, end: { line: 90, column: 9 }, before: 'const b = 2;' };
    const { file, line, original, replacement } = MUTANT;
    expect(isSameChange({ file, line, original, replacement }, moved)).toBe(true);
    expect(isSameChange(MUTANT, moved)).toBe(false);
    expect(isSameChange({ file, line, original, replacement: 'a > b' }, moved)).toBe(false);
  });
});

describe('the list of equivalent mutants', () => {
  it('names lines and texts that are in the current sources', () => {
    const missing = EQUIVALENT_MUTANTS.filter(({ file, line, original }) => {
      const source = readFileSync(join(repositoryRoot(), file), 'utf8');
      return !source.includes(line) || !source.includes(original);
    });
    expect(missing).toEqual([]);
  });
});
