import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeError } from './errors.ts';

/**
 * The folder of floe's package.json: the nearest one above the module `moduleUrl`, whether that runs from `src/`, `dist/` or another
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

/** The name in the package.json of `folder`; `null` when there is none that can be read. */
function packageName(folder: string): unknown {
  try {
    const manifest: unknown = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
    return typeof manifest === 'object' && manifest !== null && 'name' in manifest ? manifest.name : null;
  } catch {
    return null;
  }
}
