import { join } from 'node:path';
import { expect, test } from 'vitest';
import { BUGS, withDefect } from '../../../verify/control-plane/planted-defects.mjs';

const DIST = join(import.meta.dirname, '..', '..', 'dist');

test.each(BUGS)('the code still has the place of the planted defect "$name"', (bug) => {
  const { before, text } = withDefect(DIST, bug);
  expect(text).not.toBe(before);
});

test('a defect whose place is gone is told by name', () => {
  const gone = { name: 'gone', file: 'core/ids.js', edits: [['no such text', '']] };
  expect(() => withDefect(DIST, gone)).toThrow('"gone": "no such text" stands 0 times in core/ids.js');
});
