import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeError } from './errors.ts';

/**
 * Returns the path of a file or folder that ships with floe. `relative` is its path below the root of the module's package, of the package
 * that bundles the module, or of the repository. The root is found as the nearest folder above the module `moduleUrl` that contains
 * `relative`. Throws `setup_failed` when no folder contains it.
 */
export function assetPath(moduleUrl: string, relative: string): string {
  const start = dirname(fileURLToPath(moduleUrl));
  for (let folder = start; ; folder = dirname(folder)) {
    const path = join(folder, relative);
    if (existsSync(path)) return path;
    if (folder === dirname(folder)) break;
  }
  throw new FloeError('setup_failed', `no ${relative} in ${start} or a folder above it; reinstall floe`, { start });
}

/** Maps each source folder to the folder that contains its compiled JavaScript. */
const BUILD_FOLDERS: Readonly<Record<string, string>> = {
  src: 'dist',
  verify: '.build/verify',
  bench: '.build/bench',
};

/**
 * Returns the path of a compiled file of floe that is run as a separate process. `relative` is its path relative to the module
 * `importMetaUrl`. In tests this module may be a TypeScript source, which Node 20 cannot run. Then the folder `src` in the path is replaced by
 * `dist`, and the other folders in {@link BUILD_FOLDERS} likewise.
 */
export function entryPath(importMetaUrl: string, relative: string): string {
  const path = fileURLToPath(new URL(relative, importMetaUrl));
  if (!importMetaUrl.endsWith('.ts')) return path;
  const [, root, folder = '', rest] = /^(.*[\\/])(src|verify|bench)([\\/].*)$/.exec(path) ?? [];
  return root === undefined ? path : `${root}${BUILD_FOLDERS[folder]}${rest}`;
}
