// `npm run verify -- conformance`: the official SDKs and two agent frameworks drive the proxy; closes with "N passed, N failed". They are
// installed from verify/conformance/package-lock.json, separately from the packages that floe itself needs.
//
//   npm run verify -- conformance [--json] [OPTION OF VITEST…]
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../src/core/package-root.ts';
import { countTests } from '../../tools/vitest.ts';

const FOLDER = join(packageRoot(), 'verify', 'conformance');

/** Runs a program with its output shown; ends this process when it fails. */
function run(program: string, args: readonly string[]): void {
  const { error, status } = spawnSync(program, args, { cwd: FOLDER, stdio: 'inherit' });
  if (error !== undefined) throw new Error(`${program} could not be started: ${error.message}`);
  if (status !== 0) process.exit(status ?? 1);
}

/** Runs `npm ci` unless the SDKs were installed from this very lock file. */
function ensureSdks(): void {
  const stamp = join(FOLDER, 'node_modules', '.floe-lock');
  const digest = createHash('sha256')
    .update(readFileSync(join(FOLDER, 'package-lock.json')))
    .digest('hex');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === digest) return;
  console.error('▸ installing the locked SDKs (once, about 160 MB)');
  const flags = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
  run(process.platform === 'win32' ? 'npm.cmd' : 'npm', ['ci', ...flags]);
  writeFileSync(stamp, digest);
}

ensureSdks();
console.error('▸ checking the types of the suite against those of the SDKs');
run(process.execPath, [join(packageRoot(), 'node_modules', 'typescript', 'bin', 'tsc'), '-p', '.']);
const args = process.argv.slice(2);
const options = args.filter((arg) => arg !== '--json');
const counts = await countTests(['--config=verify/conformance/vitest.config.ts', ...options]);
console.log(`${counts.passed} passed, ${counts.failed} failed`);
if (args.includes('--json')) console.log(JSON.stringify(counts));
if (counts.failed > 0) process.exitCode = 1;
