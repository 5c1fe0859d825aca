// `npm run verify -- stryker`: draws mutants at random and checks with StrykerJS that a test fails for each. A mutant changes one expression
// of the code that carries tokens, rollouts and their state.
//
//   npm run verify -- stryker [--mutants N] [--seed N] [--quick] [--fast] [--room NAME]… [--file PATH]… [--survivors FILE]
//                             [--tests DIR]… [--jobs N] [--incremental] [--json]
//
// Ends with "stryker: S sampled, K killed, E equivalent, score P %", and exits with 1 when the score is below the minimum. Stryker is
// installed from verify/stryker/package-lock.json, separately from floe's own packages.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { ensureLockedPackages } from '../../tools/locked-packages.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { EQUIVALENT_MUTANTS, isSameChange } from './equivalent.ts';
import { allMutants, draw, keyOf, type Mutant, mutatedFiles, roomOf } from './mutants.ts';
import { FOLDER, loadStryker, packageUrl } from './packages.ts';
import { CHECKER, DRAWN_VARIABLE, keyOfFound, REPORTER } from './plugin.ts';
import {
  countsOf,
  MINIMUM_SCORE,
  printTable,
  QUICK_MINIMUM_SCORE,
  type Result,
  survivorsOf,
  survivorText,
} from './results.ts';
import { FAST_TESTS, LEFT_OUT_VARIABLE, SLOW_TESTS, TESTS_VARIABLE, type TestFiles, testsIn } from './tests.ts';

/**
 * Folder of the files that a run keeps: the list of survivors (mutants that no test detected), and Stryker's results for `--incremental`. A
 * run also copies the repository into this folder, and removes the copy at its end.
 */
const RUN_FOLDER = join('.floe', 'stryker');
const SURVIVORS = join(RUN_FOLDER, 'survivors.json');
const DRAWN = join(RUN_FOLDER, 'drawn.json');
const INCREMENTAL = join(RUN_FOLDER, 'incremental.json');

const DEFAULT_MUTANTS = 400;
const QUICK_MUTANTS = 40;

/** Folders that the tests do not read. They are left out of the copy of the repository in which the tests run. */
const NOT_COPIED = ['.build', '.floe', 'deploy', 'docs'];

const { options, json } = readOptions({
  mutants: { type: 'string' },
  seed: { type: 'string', default: '1' },
  quick: { type: 'boolean', default: false },
  fast: { type: 'boolean', default: false },
  room: { type: 'string', multiple: true, default: [] },
  file: { type: 'string', multiple: true, default: [] },
  survivors: { type: 'string' },
  tests: { type: 'string', multiple: true, default: [] },
  jobs: { type: 'string', default: String(availableParallelism()) },
  incremental: { type: 'boolean', default: false },
});

/** Returns the mutants to test: randomly drawn ones, or those in the file that `--survivors` names. */
function chooseMutants(mutants: readonly Mutant[]): readonly Mutant[] {
  if (options.survivors !== undefined) {
    const wanted: readonly Mutant[] = JSON.parse(readFileSync(options.survivors, 'utf8'));
    const found = mutants.filter((mutant) => wanted.some((other) => isSameChange(other, mutant)));
    console.error(`▸ ${found.length} of the ${wanted.length} mutants in ${options.survivors} are in these sources`);
    return found;
  }
  const count = Number(options.mutants ?? (options.quick ? QUICK_MUTANTS : DEFAULT_MUTANTS));
  return draw(mutants, count, Number(options.seed));
}

/** Tests the mutants with the fast tests, and then the survivors with the slow tests. */
async function testAll(mutants: readonly Mutant[]): Promise<readonly Result[]> {
  if (options.tests.length > 0) return test(mutants, testsIn(options.tests));
  const fast = await test(mutants, FAST_TESTS);
  const survivors = survivorsOf(fast);
  writeSurvivors(survivors);
  if (options.fast || options.quick || survivors.length === 0) return fast;
  console.error(`▸ ${survivors.length} mutants survived the fast tests; testing them with the slow tests`);
  const slow = new Map(
    (
      await test(
        survivors.map(({ mutant }) => mutant),
        SLOW_TESTS,
      )
    ).map((result) => [keyOf(result.mutant), result]),
  );
  return fast.map((result) => {
    const second = slow.get(keyOf(result.mutant));
    // `NoCoverage` means that no slow test executes the mutant, so the result of the fast tests counts.
    return second === undefined || second.status === 'NoCoverage' ? result : second;
  });
}

/** Tests the mutants with Stryker and returns their results. */
async function test(mutants: readonly Mutant[], tests: TestFiles): Promise<readonly Result[]> {
  if (mutants.length === 0) return [];
  writeFileSync(DRAWN, JSON.stringify(mutants));
  process.env[DRAWN_VARIABLE] = join(repositoryRoot(), DRAWN);
  process.env[TESTS_VARIABLE] = JSON.stringify(tests.run);
  process.env[LEFT_OUT_VARIABLE] = JSON.stringify(tests.leftOut);
  const { Stryker } = await loadStryker();
  const tested = await new Stryker({
    mutate: mutants.map(
      ({ file, start, end }) => `${file}:${start.line + 1}:${start.column}-${end.line + 1}:${end.column}`,
    ),
    plugins: [packageUrl('vitest-runner'), pathToFileURL(join(import.meta.dirname, 'plugin.js')).href],
    testRunner: 'vitest',
    vitest: { configFile: 'verify/stryker/vitest.config.ts', related: true },
    checkers: [CHECKER],
    reporters: [REPORTER],
    coverageAnalysis: 'perTest',
    incremental: true,
    incrementalFile: INCREMENTAL,
    force: !options.incremental,
    disableTypeChecks: false,
    // Stryker would rewrite the tsconfig file with an API that TypeScript no longer has. It rewrites nothing when this file does not exist.
    tsconfigFile: 'no-tsconfig.json',
    ignorePatterns: NOT_COPIED,
    tempDirName: RUN_FOLDER,
    cleanTempDir: 'always',
    concurrency: Number(options.jobs),
    // The time limit for a mutant is twice the duration of its tests, plus this many milliseconds.
    timeoutMS: 15_000,
    timeoutFactor: 2,
    dryRunTimeoutMinutes: 20,
    logLevel: 'warn',
    allowConsoleColors: false,
    warnings: { slow: false },
  }).runMutationTest();
  forgetRefused();
  const statuses = new Map(tested.map((result) => [keyOfFound(result, 1), result.status]));
  return mutants.map((mutant) => {
    const status = statuses.get(keyOf(mutant));
    if (status === undefined) throw new Error(`Stryker returned no result for ${survivorText(mutant, 'Pending')}`);
    return { mutant, status };
  });
}

/** Removes the mutants that were not drawn from the results that `--incremental` reuses, because another run may draw them. */
function forgetRefused(): void {
  const report: { files: Record<string, { mutants: { status: string }[] }> } = JSON.parse(
    readFileSync(INCREMENTAL, 'utf8'),
  );
  for (const file of Object.values(report.files)) {
    file.mutants = file.mutants.filter(({ status }) => status !== 'CompileError');
  }
  writeFileSync(INCREMENTAL, JSON.stringify(report));
}

function writeSurvivors(survivors: readonly Result[]): void {
  writeFileSync(
    SURVIVORS,
    JSON.stringify(
      survivors.map(({ mutant }) => mutant),
      null,
      2,
    ),
  );
}

/** Separates the mutants of the list in equivalent.ts, which are not tested, from the others. */
function partition(mutants: readonly Mutant[]): {
  readonly equivalent: readonly Mutant[];
  readonly others: readonly Mutant[];
} {
  const isEquivalent = (mutant: Mutant): boolean => EQUIVALENT_MUTANTS.some((entry) => isSameChange(entry, mutant));
  return { equivalent: mutants.filter(isEquivalent), others: mutants.filter((mutant) => !isEquivalent(mutant)) };
}

/** Prints the entries of the list in equivalent.ts that do not match exactly one mutant of the files. */
function reportEntries(mutants: readonly Mutant[], files: readonly string[]): void {
  for (const entry of EQUIVALENT_MUTANTS.filter(({ file }) => files.includes(file))) {
    const matches = mutants.filter((mutant) => isSameChange(entry, mutant)).length;
    if (matches === 1) continue;
    const remedy = matches === 0 ? 'remove it, or bring it up to date' : 'add the field "before"';
    console.log(
      `equivalent.ts: an entry matches ${matches} mutants: ${remedy}: ${entry.file}  ${entry.original}  ->  ${entry.replacement}`,
    );
  }
}

process.chdir(repositoryRoot());
mkdirSync(RUN_FOLDER, { recursive: true });
ensureLockedPackages(FOLDER, 'the locked packages of Stryker (once, about 65 MB)');

const files = mutatedFiles()
  .filter((file) => options.room.length === 0 || options.room.includes(roomOf({ file })))
  .filter((file) => options.file.length === 0 || options.file.some((part) => file.includes(part)));
console.error(`▸ listing the mutants of ${files.length} files`);
const mutants = await allMutants(files);
const { equivalent, others } = partition(chooseMutants(mutants));
console.error(
  `▸ testing ${others.length} of ${mutants.length} mutants; the tests run without a mutant first (minutes)`,
);
const results: readonly Result[] = [
  ...equivalent.map((mutant): Result => ({ mutant, status: 'equivalent' })),
  ...(await testAll(others)),
];

const survivors = survivorsOf(results);
writeSurvivors(survivors);
console.log('');
printTable(results);
if (survivors.length > 0) {
  console.log(`\nsurvivors (npm run verify -- stryker --survivors ${SURVIVORS} tests only these):`);
  for (const { mutant, status } of survivors) console.log(`  ${survivorText(mutant, status)}`);
}
reportEntries(mutants, files);
const { sampled, killed, equivalent: equivalentCount, score } = countsOf(results);
conclude({
  line: `\nstryker: ${sampled} sampled, ${killed} killed, ${equivalentCount} equivalent, score ${score} %`,
  keys: { sampled, killed, equivalent: equivalentCount, score },
  isPassed: score >= (options.quick ? QUICK_MINIMUM_SCORE : MINIMUM_SCORE),
  json,
});
