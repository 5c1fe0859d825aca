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

/** Returns the field `name` of the package.json in `folder`; `null` when no readable package.json is there. */
function packageName(folder: string): unknown {
  try {
    const manifest: unknown = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
    return typeof manifest === 'object' && manifest !== null && 'name' in manifest ? manifest.name : null;
  } catch {
    return null;
  }
}

/** Maps each source folder to the folder that contains its compiled JavaScript. */
const BUILD_FOLDERS: Readonly<Record<string, string>> = {
  src: 'dist',
  verify: '.build/verify',
  bench: '.build/bench',
};

/**
 * Returns the path of a compiled file of floe that is run as a separate process. `relative` is its path relative to the module
 * `importMetaUrl`. When that module is a TypeScript source, as in tests, the folder `src` in the path is replaced by `dist`, and likewise for
 * the other folders in {@link BUILD_FOLDERS}, because Node 20 cannot run TypeScript.
 */
export function entryPath(importMetaUrl: string, relative: string): string {
  const path = fileURLToPath(new URL(relative, importMetaUrl));
  if (!importMetaUrl.endsWith('.ts')) return path;
  const [, root, folder = '', rest] = /^(.*[\\/])(src|verify|bench)([\\/].*)$/.exec(path) ?? [];
  return root === undefined ? path : `${root}${BUILD_FOLDERS[folder]}${rest}`;
}
