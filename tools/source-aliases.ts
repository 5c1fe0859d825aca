import { join } from 'node:path';

const PACKAGES = join(import.meta.dirname, '..', 'packages');

/**
 * Lets tests import the sources of all packages instead of the compiled files. Aliases are used and not an export condition, because Vitest
 * passes conditions on to all Node processes and threads that tests start.
 */
export const SOURCE_ALIASES = [
  { find: /^@floe-rl\/([a-z]+)$/, replacement: join(PACKAGES, '$1', 'src', 'index.ts') },
  { find: /^@floe-rl\/([a-z]+)\/([a-z]+)$/, replacement: join(PACKAGES, '$1', 'src', '$2', 'index.ts') },
  { find: /^floe\/([a-z]+)$/, replacement: join(PACKAGES, 'floe', 'src', '$1', 'index.ts') },
  { find: /^#([a-z]+)\/(.+)$/, replacement: join(PACKAGES, '$1', 'src', '$2.ts') },
];
