import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { entryPath, packageRoot } from '../src/package-root.ts';

const dirs: string[] = [];
afterEach(() => {
  for (const dir of dirs.splice(0)) rmSync(dir, { recursive: true, force: true });
});

/** Creates a package named `name` with a module at `modulePath`, in a temporary folder. */
function packageWith(name: string, modulePath: string): { root: string; moduleUrl: string } {
  const root = mkdtempSync(join(tmpdir(), 'floe-package-'));
  dirs.push(root);
  mkdirSync(join(root, modulePath, '..'), { recursive: true });
  writeFileSync(join(root, 'package.json'), JSON.stringify({ name }));
  return { root, moduleUrl: pathToFileURL(join(root, modulePath)).href };
}

describe('packageRoot', () => {
  it('finds the package of this repository', () => {
    expect(JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8'))).toMatchObject({ name: 'floe' });
  });

  it.each(['dist/core/package-root.js', '.build/src/core/package-root.js'])('finds the package above %s', (path) => {
    const { root, moduleUrl } = packageWith('floe', path);
    expect(packageRoot(moduleUrl)).toBe(root);
  });

  it('passes over the package.json of another package', () => {
    const { root, moduleUrl } = packageWith('floe', 'build/core/package-root.js');
    writeFileSync(join(root, 'build', 'package.json'), '{"type":"module"}');
    expect(packageRoot(moduleUrl)).toBe(root);
  });

  it('throws setup_failed outside the package', () => {
    const { moduleUrl } = packageWith('other', 'dist/main.js');
    expect(() => packageRoot(moduleUrl)).toThrow(expect.objectContaining({ code: 'setup_failed' }));
  });
});

describe('entryPath', () => {
  it('resolves to the compiled file below dist when the caller runs from src', () => {
    expect(entryPath('file:///home/floe/src/runtimes/spawn-client.ts', './spawn-helper.js')).toBe(
      '/home/floe/dist/runtimes/spawn-helper.js',
    );
  });

  it('replaces only the last src of the path', () => {
    expect(entryPath('file:///src/floe/src/runtimes/a.ts', './b.js')).toBe('/src/floe/dist/runtimes/b.js');
  });

  it.each(['verify', 'bench'])('resolves to the compiled file below .build when the caller runs from %s', (folder) => {
    expect(entryPath(`file:///home/floe/${folder}/matrix/rows.ts`, './loop.js')).toBe(
      `/home/floe/.build/${folder}/matrix/loop.js`,
    );
  });

  it.each(['dist', '.build/src'])('resolves next to a caller that was compiled to %s', (folder) => {
    expect(entryPath(`file:///home/floe/${folder}/runtimes/a.js`, './b.js')).toBe(`/home/floe/${folder}/runtimes/b.js`);
  });
});
