// `npm run conformance`: the official SDKs and two agent frameworks drive the proxy; closes with "N passed, N failed".
// They are installed from conformance/package-lock.json, apart from what floe itself needs.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ensurePackages, ROOT, run, step } from '../../tools/setup.mjs';

const HERE = join(ROOT, 'conformance');

ensurePackages();
ensureSdks();
const vitest = spawnSync(
  process.execPath,
  [
    join(ROOT, 'node_modules', 'vitest', 'vitest.mjs'),
    'run',
    '--config=conformance/vitest.config.mjs',
    '--reporter=./tools/summary-reporter.mjs',
    ...process.argv.slice(2),
  ],
  { cwd: ROOT, stdio: 'inherit' },
);
process.exit(vitest.status ?? 1);

/** `npm ci` unless conformance/node_modules was made from this very lock file. */
function ensureSdks() {
  const stamp = join(HERE, 'node_modules', '.floe-lock');
  const wanted = createHash('sha256')
    .update(readFileSync(join(HERE, 'package-lock.json')))
    .digest('hex');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) return;
  step('installing the locked SDKs (once, about 160 MB)');
  const flags = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
  run(process.platform === 'win32' ? 'npm.cmd' : 'npm', ['ci', ...flags], { cwd: HERE });
  writeFileSync(stamp, wanted);
}
