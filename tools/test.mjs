// `npm test`: sets up what the tests need, runs them, closes with "N passed, N failed".
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { ROOT, setUp, step } from './setup.mjs';

setUp();
step('installing the pinned pi harness, if it is not there');
const { harnessDir } = await import('../dist/cli/home.js');
// The tests that run pi use the installation that people use, instead of making one of their own.
process.env.FLOE_TEST_HARNESS_DIR ??= harnessDir();
const harness = spawnSync(process.execPath, [join(ROOT, 'dist', 'cli', 'main.js'), 'harness', 'install', 'pi'], {
  cwd: ROOT,
  stdio: 'inherit',
});
if (harness.status !== 0) console.error('  pi is not installed: its tests will be skipped');

const vitest = spawnSync(
  process.execPath,
  [
    join(ROOT, 'node_modules', 'vitest', 'vitest.mjs'),
    'run',
    '--reporter=./tools/summary-reporter.mjs',
    ...process.argv.slice(2),
  ],
  { cwd: ROOT, stdio: 'inherit' },
);
process.exit(vitest.status ?? 1);
