// `npm run golden`: every golden case in every engine mode, as a table.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { ROOT, setUp } from '../../tools/setup.mjs';

setUp();
const vitest = join(ROOT, 'node_modules', 'vitest', 'vitest.mjs');
const args = [vitest, 'run', '--reporter=./tools/golden-reporter.mjs', 'test/golden', ...process.argv.slice(2)];
const { status } = spawnSync(process.execPath, args, { cwd: ROOT, stdio: 'inherit' });
process.exit(status ?? 1);
