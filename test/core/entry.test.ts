import { describe, expect, it } from 'vitest';
import { entryPath } from '../../src/core/entry.ts';

describe('entryPath', () => {
  it('resolves to the compiled file below dist when the caller runs from src', () => {
    expect(entryPath('file:///home/floe/src/runtimes/spawn/client.ts', './spawn-helper.js')).toBe(
      '/home/floe/dist/runtimes/spawn/spawn-helper.js',
    );
  });

  it('replaces only the last src of the path', () => {
    expect(entryPath('file:///src/floe/src/runtimes/a.ts', './b.js')).toBe('/src/floe/dist/runtimes/b.js');
  });

  it.each(['dist', '.build/src'])('resolves next to a caller that was compiled to %s', (folder) => {
    expect(entryPath(`file:///home/floe/${folder}/runtimes/a.js`, './b.js')).toBe(`/home/floe/${folder}/runtimes/b.js`);
  });
});
