// `npm run verify -- mutations`: plants defects, one at a time, and checks that the tests detect each defect. The defects are in the code that
// captures tokens and builds traces, in the gateway, in the handling of leases and in floe's own agents.
//
//   npm run verify -- mutations [--only TEXT] [--from N] [--list] [--json]
//
// Works on a copy of the source tree. Ends with "mutations: N planted, M caught"; with --json, a line of JSON follows.

import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { linkModules } from '../../tools/linked-modules.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { vitestProgram } from '../../tools/vitest.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { MUTATIONS } from './defects.ts';
import { type Mutation, withDefect } from './mutation.ts';

/** Files and folders that the tests need. They are copied to a temporary folder, in which the defects are planted. */
const COPIED = [
  ...['packages', 'test', 'tools', 'verify', 'bench'],
  ...['package.json', 'tsconfig.base.json', 'tsconfig.test.json', 'vitest.config.ts'],
];

/**
 * The test folders that check tokens, in the order in which they run. They must detect each defect that names no other tests. The fastest
 * are first, because one failing test is enough.
 */
const TESTS = [
  ['packages/capture/test/tokens'],
  ['packages/capture/test/proxy'],
  ['test/golden'],
  ['packages/capture/test/engines', 'test/fidelity'],
];

/** Maximum number of bytes of output that a test run may print. No test run prints nearly as much. */
const MAX_OUTPUT_BYTES = 2 ** 28;

function copyTree(target: string): void {
  const root = repositoryRoot();
  for (const name of COPIED) {
    cpSync(join(root, name), join(target, name), {
      recursive: true,
      filter: (source) => basename(source) !== 'node_modules',
    });
  }
  linkModules(root, target);
}

/** Plants a defect in the copy of the tree. Returns a function that removes the defect. */
function plant(dir: string, mutation: Mutation): () => void {
  const path = join(dir, mutation.file);
  const original = readFileSync(path, 'utf8');
  writeFileSync(path, withDefect(original, mutation));
  return () => writeFileSync(path, original);
}

/** Runs groups of tests one after the other. Returns the name of the first test that fails; `null` when all tests pass. */
function firstFailure(dir: string, groups: readonly (readonly string[])[]): string | null {
  for (const tests of groups) {
    const failure = failureOf(dir, tests);
    if (failure !== null) return failure;
  }
  return null;
}

/** Returns the groups of tests for a defect. At least one of the groups must detect it. */
function groupsOf({ tests }: Mutation): readonly (readonly string[])[] {
  return tests === undefined ? TESTS : [tests];
}

/** Returns the tests that the given defects need. A test file is left out when the whole folder that contains it is needed. */
function testsOf(mutations: readonly Mutation[]): readonly (readonly string[])[] {
  const paths = new Set(mutations.flatMap((mutation) => groupsOf(mutation).flat()));
  const isInFolder = (path: string): boolean => [...paths].some((folder) => path.startsWith(`${folder}/`));
  return [...paths].filter((path) => !isInFolder(path)).map((path) => [path]);
}

function failureOf(dir: string, tests: readonly string[]): string | null {
  const args = [vitestProgram(dir), 'run', '--bail=1', '--reporter=./tools/summary-reporter.ts', ...tests];
  const { status, stdout } = spawnSync(process.execPath, args, {
    cwd: dir,
    // With every golden case in every engine mode.
    env: { ...process.env, FLOE_ALL_TESTS: '1' },
    encoding: 'utf8',
    maxBuffer: MAX_OUTPUT_BYTES,
  });
  if (status === 0) return null;
  const [, file, test] = /^FAIL (\S+).*\n\n {2}(.*)$/m.exec(stdout) ?? [];
  return file === undefined ? 'a test run that failed outside of any test' : `${file}: ${test}`;
}

/** Returns the number of defects that the tests detect. */
function countCaught(mutations: readonly Mutation[]): number {
  const dir = mkdtempSync(join(tmpdir(), 'floe-mutations-'));
  try {
    copyTree(dir);
    console.error('▸ the tests without a defect');
    const broken = firstFailure(dir, testsOf(mutations));
    if (broken !== null) throw new Error(`the tests fail without a defect: ${broken}`);
    let caught = 0;
    for (const [index, mutation] of mutations.entries()) {
      const remove = plant(dir, mutation);
      const failure = firstFailure(dir, groupsOf(mutation));
      remove();
      if (failure !== null) caught++;
      console.log(
        `${index + 1}/${mutations.length} ${failure === null ? 'NOT CAUGHT' : 'caught'}  ${mutation.name}${failure === null ? '' : `\n    by ${failure}`}`,
      );
    }
    return caught;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

const { options, json } = readOptions({
  only: { type: 'string', default: '' },
  from: { type: 'string', default: '1' },
  list: { type: 'boolean', default: false },
});
/** The defects to plant. `--from` continues an interrupted run with the defect of that number. */
const chosen = MUTATIONS.filter(({ name }) => name.includes(options.only)).slice(Number(options.from) - 1);
if (options.list) {
  for (const { name, file } of chosen) console.log(`${name}  (${file})`);
} else {
  const caught = countCaught(chosen);
  const line = `\nmutations: ${chosen.length} planted, ${caught} caught`;
  conclude({ line, keys: { planted: chosen.length, caught }, isPassed: caught === chosen.length, json });
}
