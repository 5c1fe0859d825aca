import { describe, expect, it } from 'vitest';
import { interpolate } from '../../../src/environments/groups/interpolate.ts';

const root = { steps: 10, deep: { list: [1, 2], again: `\${steps}` }, loop: `\${pool}`, pool: `\${loop}` };

describe('references in a file', () => {
  it('become the values at their paths, of any type, also through other references', () => {
    expect(interpolate({ a: `\${deep}`, b: [`\${deep.again}`], c: `at most \${steps} steps` }, root, 'x')).toEqual({
      a: { list: [1, 2], again: 10 },
      b: [10],
      c: 'at most 10 steps',
    });
  });

  it.each([
    ['what is missing', `\${deep.other}`, `x.f: \${deep.other}: the file has no field deep.other`],
    ['a circle', `\${loop}`, 'x.f: its references lead to one another without end'],
    ['a variable of the process', `\${oc.env:HOME}`, `x.f: \${oc.env:HOME} is a variable of the environment`],
    ['another resolver', `\${now:%Y}`, `x.f: \${now:%Y} is not a path of fields`],
    ['a reference within a reference', `a \${deep.\${steps}}`, 'x.f: '],
    ['a reference without an end', `a \${deep`, 'x.f: has a reference that cannot be read'],
  ])('to %s are refused with the name of the field', (_, text, message) => {
    expect(() => interpolate({ f: text }, root, 'x')).toThrow(message);
  });
});
