import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { assetPath, entryPath } from '../src/package-root.ts';

const dirs: string[] = [];
afterEach(() => {
  for (const dir of dirs.splice(0)) rmSync(dir, { recursive: true, force: true });
});

/** Creates a folder with the file `asset`, and returns it with the address of a module at `modulePath` in it. */
function folderWith(asset: string, modulePath: string): { root: string; moduleUrl: string } {
  const root = mkdtempSync(join(tmpdir(), 'floe-package-'));
  dirs.push(root);
  for (const path of [asset, modulePath]) mkdirSync(join(root, path, '..'), { recursive: true });
  writeFileSync(join(root, asset), '');
  return { root, moduleUrl: pathToFileURL(join(root, modulePath)).href };
}

describe('assetPath', () => {
  it.each(['dist/a.js', 'src/a.ts', 'node_modules/@scope/part/dist/a.js'])('finds a file above %s', (path) => {
    const { root, moduleUrl } = folderWith('locks/pi/package.json', path);
    expect(assetPath(moduleUrl, 'locks/pi')).toBe(join(root, 'locks/pi'));
  });

  it('prefers the folder that is nearest to the module', () => {
    const { root, moduleUrl } = folderWith('assets/a', 'inner/dist/a.js');
    mkdirSync(join(root, 'inner', 'assets'));
    writeFileSync(join(root, 'inner', 'assets', 'a'), '');
    expect(assetPath(moduleUrl, 'assets/a')).toBe(join(root, 'inner/assets/a'));
  });

  it('throws setup_failed with the missing file when no folder has it', () => {
    const { moduleUrl } = folderWith('assets/a', 'dist/a.js');
    const act = (): string => assetPath(moduleUrl, 'assets/b');
    expect(act).toThrow(
      expect.objectContaining({ code: 'setup_failed', message: expect.stringContaining('assets/b') }),
    );
  });
});

describe('entryPath', () => {
  it('resolves to the compiled file below dist when the caller runs from src', () => {
    expect(entryPath('file:///home/floe/packages/sandbox/src/spawn/client.ts', './spawn-helper.js')).toBe(
      '/home/floe/packages/sandbox/dist/spawn/spawn-helper.js',
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

  it('resolves next to a caller that is compiled', () => {
    expect(entryPath('file:///home/floe/dist/runtimes/a.js', './b.js')).toBe('/home/floe/dist/runtimes/b.js');
  });
});
