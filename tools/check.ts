// `npm run check`: runs every check that must pass before a commit. `--no-tests` leaves out the tests.

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { repositoryRoot } from './repository.ts';

const root = repositoryRoot();
const program = (path: string): string => join(root, 'node_modules', path);
const tool = (name: string): string => join(import.meta.dirname, name);

const STEPS: readonly (readonly [name: string, command: readonly string[]])[] = [
  ['format, lint and import cycles', [program('@biomejs/biome/bin/biome'), 'check', '.']],
  ['structure (import rules, sizes, forbidden calls, words)', [tool('lint.js')]],
  ['unused exports and files', [program('knip/bin/knip.js')]],
  ['types', [program('typescript/bin/tsc'), '-p', 'tsconfig.test.json']],
  ['types of the dashboard', [program('typescript/bin/tsc'), '-p', 'dashboard']],
  ['generated files', [tool('generate.js'), '--check']],
  ['tests', [tool('test.js')]],
];

for (const [name, command] of STEPS) {
  if (name === 'tests' && process.argv.includes('--no-tests')) continue;
  console.error(`▸ ${name}`);
  const { status } = spawnSync(process.execPath, command, { cwd: root, stdio: 'inherit' });
  if (status !== 0) {
    console.error(`check failed: ${name}`);
    process.exit(status ?? 1);
  }
}
