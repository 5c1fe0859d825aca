// `npm run verify -- conformance`: sends requests to floe's proxy with the official SDKs and two agent frameworks, and checks the replies.
// Ends with "N passed, N failed". The SDKs are installed from verify/conformance/package-lock.json, separately from floe's own packages.
//
//   npm run verify -- conformance [--json] [OPTION OF VITEST…]
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../src/core/package-root.ts';
import { countTests } from '../../tools/vitest.ts';

const FOLDER = join(packageRoot(), 'verify', 'conformance');

/** Runs a program and shows its output. Ends this process when the program fails. */
function run(program: string, args: readonly string[]): void {
  const { error, status } = spawnSync(program, args, { cwd: FOLDER, stdio: 'inherit' });
  if (error !== undefined) throw new Error(`${program} could not be started: ${error.message}`);
  if (status !== 0) process.exit(status ?? 1);
}

/** Installs the SDKs with `npm ci`, unless they were already installed from this version of the lock file. */
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
