import { describe, expect, it } from 'vitest';
import { nearestName } from '../../tools/programs.ts';
import { PROGRAMS, partsOf } from '../../verify/programs.ts';
import { chosenPrograms } from '../../verify/sequence.ts';

const GROUPS = Object.keys(PROGRAMS);
const NAMES = GROUPS.flatMap((group) => partsOf(group).map(([name]) => name));

describe('the verification programs', () => {
  it('have names that no other program or subject has', () => {
    const groups = GROUPS.filter((group) => partsOf(group).every(([name]) => name !== group));
    const all = ['all', ...groups, ...NAMES];
    expect(all.filter((name, index) => all.indexOf(name) !== index)).toEqual([]);
  });

  it.each([
    ...['docs', 'simulate', 'crash', 'matrix', 'fidelity', 'golden', 'mutations', 'hostile', 'engines', 'packages'],
    ...['faults', 'batches', 'generate', 'envs', 'examples', 'notebooks', 'trainer-pages', 'swebench-guide', 'stryker'],
  ])('can be started as %s, which other places name', (name) => {
    expect(NAMES).toContain(name);
  });
});

describe('a run of several programs', () => {
  const namesOf = (groups: readonly string[], isQuick: boolean, only: string | null): string[] =>
    chosenPrograms(groups, isQuick, only).map(({ name }) => name);

  it('has the programs of its subject that have the form', () => {
    expect(namesOf(['tokens'], false, null)).toEqual(['golden', 'fidelity']);
    expect(namesOf(['pages'], true, null)).toEqual(['docs', 'examples', 'swebench-guide']);
  });

  it('has the programs and subjects that are named', () => {
    expect(namesOf(GROUPS, false, 'tokens,docs')).toEqual(['golden', 'fidelity', 'docs']);
    expect(namesOf(['pages'], false, 'docs,notebooks')).toEqual(['docs', 'notebooks']);
  });

  it('refuses a name of another subject, and lists those of its own', () => {
    expect(() => namesOf(['pages'], false, 'docz')).toThrow('there is no "docz"; there are pages, docs, examples');
    expect(() => namesOf(['pages'], false, 'golden')).toThrow('there is no "golden"');
  });
});

describe('nearestName', () => {
  it('returns the name that fewest letters tell apart', () => {
    expect(nearestName('simulat', NAMES)).toBe('simulate');
    expect(nearestName('match', ['crash', 'matrix', 'patch'])).toBe('patch');
  });
});
