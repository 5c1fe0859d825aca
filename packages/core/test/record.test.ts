import { expect, it } from 'vitest';
import { isRecord } from '../src/record.ts';

it.each([
  ['an object', { a: 1 }, true],
  ['an object without a prototype', Object.create(null), true],
  ['a list', [1], false],
  ['null', null, false],
  ['a text', 'a', false],
  ['undefined', undefined, false],
])('isRecord recognizes whether %s is a record', (_, value, expected) => {
  expect(isRecord(value)).toBe(expected);
});
