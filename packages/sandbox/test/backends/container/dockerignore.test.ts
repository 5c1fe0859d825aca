import { describe, expect, it } from 'vitest';
import { ignoredBy } from '../../../src/backends/container/dockerignore.ts';

describe('the patterns of a .dockerignore file', () => {
  it.each([
    ['a.txt', 'a.txt', true],
    ['a.txt', 'b/a.txt', false],
    ['/a.txt', 'a.txt', true],
    ['./dir/', 'dir/deep/file', true],
    ['*.o', 'a.o', true],
    ['*.o', 'dir/a.o', false],
    ['**/*.o', 'a.o', true],
    ['**/*.o', 'dir/deep/a.o', true],
    ['dir/**', 'dir/deep/a', true],
    ['a?c', 'abc', true],
    ['a?c', 'a/c', false],
    ['[ab].txt', 'b.txt', true],
    ['a+b', 'a+b', true],
    ['# a.txt', '# a.txt', false],
    ['', 'a', false],
    ['.', 'a', false],
  ])('%j decides about %j: %s', (pattern, path, ignored) => {
    expect(ignoredBy(pattern)(path)).toBe(ignored);
  });

  it('decide in their order, so that a later one can include a file', () => {
    const isIgnored = ignoredBy('dir\n!dir/kept\ndir/kept/secret\n');
    expect(['dir/x', 'dir/kept', 'dir/kept/y', 'dir/kept/secret'].map(isIgnored)).toEqual([true, false, false, true]);
  });
});
