import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/**
 * Returns the root of the repository: the nearest folder above this module that contains `packages/core`. The compiled form of this module is
 * in `.build/`. Throws an Error when there is none.
 */
export function repositoryRoot(): string {
  const start = dirname(fileURLToPath(import.meta.url));
  for (let folder = start; ; folder = dirname(folder)) {
    if (existsSync(join(folder, 'packages', 'core', 'package.json'))) return folder;
    if (folder === dirname(folder)) throw new Error(`no folder above ${start} is a checkout of floe`);
  }
}
