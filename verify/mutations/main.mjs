// `npm run mutations`: plants defects in capture, graph and builders, one at a time, and sees whether the tests catch each.
//
//   node tools/mutations.mjs [--only TEXT] [--list]
//
// Works on a copy of the tree; ends with "mutations: N planted, M caught".
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT, setUp, step } from '../../tools/setup.mjs';
import { MUTATIONS } from './defects.mjs';

const { values: options } = parseArgs({
  options: { only: { type: 'string' }, list: { type: 'boolean', default: false } },
});

/** What the tests need of the tree. */
const COPIED = ['src', 'test', 'tools', 'package.json', 'tsconfig.json', 'tsconfig.test.json', 'vitest.config.ts'];
/** Those that look at tokens, one run after the other: the quick ones first, since the first failure is enough. */
const TESTS = [['test/tokens'], ['test/proxy'], ['test/golden'], ['test/engines', 'test/fidelity']];

function edited(text, { find, replace }, name) {
  const parts = text.split(find);
  if (parts.length !== 2) throw new Error(`mutation "${name}": its line stands ${parts.length - 1} times in the file`);
  return parts.join(replace);
}

function mutate(dir, { name, file, also, ...edit }) {
  const path = join(dir, file);
  const before = readFileSync(path, 'utf8');
  const edits = also === undefined ? [edit] : [edit, also];
  writeFileSync(
    path,
    edits.reduce((text, one) => edited(text, one, name), before),
  );
  return () => writeFileSync(path, before);
}

/** The first test that fails; null when all pass. */
function firstFailure(dir) {
  for (const tests of TESTS) {
    const failure = failureOf(dir, tests);
    if (failure !== null) return failure;
  }
  return null;
}

function failureOf(dir, tests) {
  const vitest = join(dir, 'node_modules', 'vitest', 'vitest.mjs');
  const args = [vitest, 'run', '--bail=1', '--reporter=./tools/summary-reporter.mjs', ...tests];
  const { status, stdout } = spawnSync(process.execPath, args, { cwd: dir, encoding: 'utf8', maxBuffer: 2 ** 28 });
  if (status === 0) return null;
  const [, file, test] = /^FAIL (\S+).*\n\n {2}(.*)$/m.exec(stdout) ?? [];
  return file === undefined ? 'a run that did not end well' : `${file}: ${test}`;
}

const chosen = MUTATIONS.filter(({ name }) => options.only === undefined || name.includes(options.only));
if (options.list) {
  for (const { name, file } of chosen) console.log(`${name}  (${file})`);
  process.exit(0);
}

setUp();
const dir = mkdtempSync(join(tmpdir(), 'floe-mutations-'));
try {
  for (const name of COPIED) cpSync(join(ROOT, name), join(dir, name), { recursive: true });
  symlinkSync(join(ROOT, 'node_modules'), join(dir, 'node_modules'));
  step('the tests without a defect');
  const broken = firstFailure(dir);
  if (broken !== null) throw new Error(`the tests fail as they are: ${broken}`);
  let caught = 0;
  for (const [index, mutation] of chosen.entries()) {
    const restore = mutate(dir, mutation);
    const failed = firstFailure(dir);
    restore();
    if (failed !== null) caught++;
    console.log(`${index + 1}/${chosen.length} ${failed === null ? 'NOT CAUGHT' : 'caught'}  ${mutation.name}`);
    if (failed !== null) console.log(`    by ${failed}`);
  }
  console.log(`\n${JSON.stringify({ planted: chosen.length, caught })}`);
  console.log(`mutations: ${chosen.length} planted, ${caught} caught`);
  if (caught < chosen.length) process.exitCode = 1;
} finally {
  rmSync(dir, { recursive: true, force: true });
}
