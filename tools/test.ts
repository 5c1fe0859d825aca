// `npm test [-- --all] [-- PATH…]`: installs the pinned pi harness if it is missing, and runs the tests. `--all` includes the tests that take
// minutes. The last line is "N passed, N failed".

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { harnessDir } from '#floe/commands/home';
import { repositoryRoot } from './repository.ts';
import { countTests, runVitest } from './vitest.ts';

console.error('▸ installing the pinned pi harness, if it is missing');
// All tests that run the harness pi use this one installation, so that not every test installs pi.
process.env.FLOE_TEST_HARNESS_DIR ??= harnessDir();
const main = join(repositoryRoot(), 'packages', 'floe', 'dist', 'commands', 'main.js');
const install = spawnSync(process.execPath, [main, 'harness', 'install', 'pi'], { stdio: 'inherit' });
if (install.status !== 0) console.error('  pi is not installed: its tests will be skipped');
const args = process.argv.slice(2).filter((arg) => arg !== '--all');
if (args.length < process.argv.length - 2) process.env.FLOE_ALL_TESTS = '1';
if (args.some((arg) => arg.startsWith('--project'))) process.exit(runVitest(args));

// Integration tests wait most of the time for the programs that they start, so the unit tests run beside them. The output of the unit tests is
// printed when all have ended.
const lines: string[] = [];
const [integration, unit] = await Promise.all([
  countTests(['--project', 'integration', '--passWithNoTests', ...args]),
  countTests(['--project', 'unit', '--passWithNoTests', '--maxWorkers=1', ...args], {}, (line) => lines.push(line)),
]);
for (const line of lines) console.log(line);
const passed = integration.passed + unit.passed;
const failed = integration.failed + unit.failed;
if (passed + failed === 0) console.error(`no test ran: no file of a test matches ${args.join(' ')}`);
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = passed > 0 && failed === 0 ? 0 : 1;
