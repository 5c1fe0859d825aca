// `npm run check`: everything that must hold before a commit.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { ROOT, setUp } from './setup.mjs';

setUp();
const node = process.execPath;
const bin = (path) => join(ROOT, 'node_modules', path);
const steps = [
  ['format and lint', [bin('@biomejs/biome/bin/biome'), 'check', '.']],
  ['structure (imports, sizes, forbidden calls)', [join(ROOT, 'tools', 'lint-structure.mjs')]],
  ['types', [bin('typescript/bin/tsc'), '-p', 'tsconfig.test.json']],
  ['generated files', [join(ROOT, 'tools', 'generate-docs.mjs'), '--check']],
  ['tests', [join(ROOT, 'tools', 'test.mjs')]],
];
for (const [name, args] of steps) {
  if (name === 'tests' && process.argv.includes('--no-tests')) continue;
  console.error(`▸ ${name}`);
  const result = spawnSync(node, args, { cwd: ROOT, stdio: 'inherit' });
  if (result.status !== 0) {
    console.error(`check failed: ${name}`);
    process.exit(result.status ?? 1);
  }
}
