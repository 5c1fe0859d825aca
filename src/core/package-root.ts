import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeError } from './errors.ts';

/**
 * Returns the folder of floe's package.json: the nearest one above the module `moduleUrl`, which may be in `src/`, `dist/` or another
 * build folder. Throws `setup_failed` when there is none.
 */
export function packageRoot(moduleUrl: string = import.meta.url): string {
  const start = dirname(fileURLToPath(moduleUrl));
  for (let folder = start; ; folder = dirname(folder)) {
    if (packageName(folder) === 'floe') return folder;
    if (folder === dirname(folder)) break;
  }
  throw new FloeError('setup_failed', `no package.json of floe in ${start} or a folder above it; reinstall floe`, {
    start,
  });
}

/** Returns the name in the package.json of `folder`; `null` when there is no such file that can be read. */
function packageName(folder: string): unknown {
  try {
    const manifest: unknown = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
    return typeof manifest === 'object' && manifest !== null && 'name' in manifest ? manifest.name : null;
  } catch {
    return null;
  }
}

/** Folder that contains the compiled JavaScript of each source folder. */
const BUILD_FOLDERS: Readonly<Record<string, string>> = {
  src: 'dist',
  verify: '.build/verify',
  bench: '.build/bench',
};

/**
 * Returns the path of a compiled file of floe that is run as a separate process. `relative` is its path relative to the module
 * `importMetaUrl`. When that module is TypeScript, as in tests, the path is in the build folder of its source folder, because Node 20
 * cannot run TypeScript.
 */
export function entryPath(importMetaUrl: string, relative: string): string {
  const path = fileURLToPath(new URL(relative, importMetaUrl));
  if (!importMetaUrl.endsWith('.ts')) return path;
  const [, root, folder = '', rest] = /^(.*[\\/])(src|verify|bench)([\\/].*)$/.exec(path) ?? [];
  return root === undefined ? path : `${root}${BUILD_FOLDERS[folder]}${rest}`;
}
