import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';
import { DEFECTS, withDefect } from '../../../verify/control-plane/planted-defects.ts';

const BUILD = join(repositoryRoot(), '.build');

describe('withDefect', () => {
  it.each(DEFECTS)('finds the text to replace for the defect: $name', (defect) => {
    const { before, after } = withDefect(BUILD, defect);
    expect(after).not.toBe(before);
  });

  it('reports a defect whose text is no longer in the source', () => {
    const outdated = { name: 'outdated', file: 'packages/core/src/ids.js', edits: [['no such text', '']] as const };
    expect(() => withDefect(BUILD, outdated)).toThrow(
      '"outdated": "no such text" occurs 0 times in packages/core/src/ids.js',
    );
  });
});
