// `npm test [-- --all] [-- PATH…]`: installs the pinned pi harness if it is missing, and runs the tests. `--all` includes those that take minutes.
// The last line is "N passed, N failed".

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { harnessDir } from '#floe/commands/home';
import { repositoryRoot } from './repository.ts';
import { runVitest } from './vitest.ts';

console.error('▸ installing the pinned pi harness, if it is missing');
// All tests that run the harness pi use this one installation, so that not every test installs pi.
process.env.FLOE_TEST_HARNESS_DIR ??= harnessDir();
const main = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
const install = spawnSync(process.execPath, [main, 'harness', 'install', 'pi'], { stdio: 'inherit' });
if (install.status !== 0) console.error('  pi is not installed: its tests will be skipped');
const args = process.argv.slice(2).filter((arg) => arg !== '--all');
if (args.length < process.argv.length - 2) process.env.FLOE_ALL_TESTS = '1';
process.exit(runVitest(args));
