// `npm run verify -- conformance`: sends requests to floe's proxy with the official SDKs and two agent frameworks, and checks the replies,
// in tokens mode and in chat mode. Ends with "N passed, N failed", the sums of both modes. The SDKs are installed from
// verify/conformance/package-lock.json, separately from floe's own packages.
//
//   npm run verify -- conformance [--mode=tokens|chat] [--json] [OPTION OF VITEST…]

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { takeJsonOption } from '../../tools/json-option.ts';
import { ensureLockedPackages } from '../../tools/locked-packages.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { countTests } from '../../tools/vitest.ts';
import { conclude } from '../runner/report.ts';
import { MODE_VARIABLE, MODES, type Mode } from './mode.ts';

const FOLDER = join(repositoryRoot(), 'verify', 'conformance');

/** Runs a program and shows its output. Ends this process when the program fails. */
function run(program: string, args: readonly string[]): void {
  const { error, status } = spawnSync(program, args, { cwd: FOLDER, stdio: 'inherit' });
  if (error !== undefined) throw new Error(`${program} could not be started: ${error.message}`);
  if (status !== 0) process.exit(status ?? 1);
}

const MODE_OPTION = '--mode=';

/** Returns the modes that the arguments select; all modes when they select none. */
function modesOf(args: readonly string[]): readonly Mode[] {
  const named = args.filter((arg) => arg.startsWith(MODE_OPTION)).map((arg) => arg.slice(MODE_OPTION.length));
  const unknown = named.find((name) => !MODES.some((mode) => mode === name));
  if (unknown !== undefined) throw new Error(`${MODE_OPTION}${unknown}: there is ${MODES.join(', ')}`);
  return named.length === 0 ? MODES : MODES.filter((mode) => named.includes(mode));
}

ensureLockedPackages(FOLDER, 'the locked SDKs (once, about 160 MB)');
console.error('▸ checking the types of the suite against those of the SDKs');
run(process.execPath, [join(repositoryRoot(), 'node_modules', 'typescript', 'bin', 'tsc'), '-p', '.']);
const { args, json } = takeJsonOption(process.argv.slice(2));
const options = args.filter((arg) => !arg.startsWith(MODE_OPTION));
const counts = { passed: 0, failed: 0 };
for (const mode of modesOf(args)) {
  console.error(`▸ ${mode} mode`);
  const { passed, failed } = await countTests(['--config=verify/conformance/vitest.config.ts', ...options], {
    [MODE_VARIABLE]: mode,
  });
  counts.passed += passed;
  counts.failed += failed;
}
conclude({
  line: `${counts.passed} passed, ${counts.failed} failed`,
  keys: counts,
  isPassed: counts.failed === 0,
  json,
});
