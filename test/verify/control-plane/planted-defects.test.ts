import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';
import { DEFECTS, withDefect } from '../../../verify/control-plane/planted-defects.ts';

const ROOT = repositoryRoot();

describe('withDefect', () => {
  it.each(DEFECTS)('finds the text to replace for the defect: $name', (defect) => {
    const { before, after } = withDefect(ROOT, defect);
    expect(after).not.toBe(before);
  });

  it('reports a defect whose text is no longer in the source', () => {
    const outdated = { name: 'outdated', file: 'packages/core/dist/ids.js', edits: [['no such text', '']] as const };
    expect(() => withDefect(ROOT, outdated)).toThrow(
      '"outdated": "no such text" occurs 0 times in packages/core/dist/ids.js',
    );
  });
});
