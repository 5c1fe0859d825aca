import { expect, it } from 'vitest';
import { knownNames } from '../../tools/known-names.ts';

it('knownNames returns the names of an option', () => {
  expect(knownNames('only', 'b,a', ['a', 'b'])).toEqual(['b', 'a']);
  expect(knownNames('only', null, ['a', 'b'])).toBeNull();
});

it.each(['c', 'a,c', ''])('knownNames refuses %j and lists the known names', (text) => {
  expect(() => knownNames('only', text, ['a', 'b'])).toThrow(/--only: there is no ".*"; there are a, b/);
});
