// Runs verification programs one after the other and prints a table of them at the end: `npm run verify -- all`, or `-- GROUP`, with
// `[--quick] [--only NAME,NAME] [--fresh] [--json [FILE]]`.
//
// `--quick` runs the short form of each program; the short forms of all programs take an hour at most on two cores. An interrupted run
// continues with the program that was interrupted. Results are kept for the commit, as long as nothing is changed. `--fresh` forgets them.
// Ends with "all: N programs, P passed, F failed".
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { knownNames } from '../tools/known-names.ts';
import { repositoryRoot } from '../tools/repository.ts';
import { type Form, PROGRAMS, partsOf } from './programs.ts';
import { Child } from './runner/child.ts';
import { readOptions } from './runner/options.ts';
import { conclude } from './runner/report.ts';

const ROOT = repositoryRoot();
/** Where results are kept, so that an interrupted run continues. */
const RESULTS = join(ROOT, '.floe', 'verify-all.json');
/** Maximum number of characters of a program's last line in the table. */
const MAX_LINE = 120;

type Result = { readonly seconds: number; readonly passed: boolean; readonly lastLine: string };
type Results = { readonly state: string; readonly programs: Record<string, Result> };
type Chosen = { readonly name: string; readonly form: Form };

/** Returns what identifies the run: the commit, the changes of the checkout and the form. */
function stateOf(isQuick: boolean): string {
  const git = (...args: readonly string[]): string =>
    execFileSync('git', args, { cwd: ROOT, encoding: 'utf8', maxBuffer: 2 ** 28 });
  const changes = git('status', '--porcelain') === '' ? '' : git('diff', 'HEAD');
  const digest = createHash('sha256').update(changes).digest('hex').slice(0, 12);
  return `${git('rev-parse', 'HEAD').trim()} ${digest} ${isQuick ? 'quick' : 'full'}`;
}

function readResults(state: string, isFresh: boolean): Results {
  const none = { state, programs: {} };
  if (isFresh) return none;
  try {
    const kept = JSON.parse(readFileSync(RESULTS, 'utf8')) as Results;
    return kept.state === state ? kept : none;
  } catch (error) {
    if (error instanceof SyntaxError || (error as NodeJS.ErrnoException).code === 'ENOENT') return none;
    throw error;
  }
}

/** Runs a program with its output shown, and resolves with how it ended. */
async function run({ name, form }: Chosen): Promise<Result> {
  const started = systemClock.monotonicMs();
  const command = [process.execPath, join(ROOT, 'tools', 'run.js'), 'verify', name, ...form];
  const child = new Child(command, { cwd: ROOT, isShown: true });
  let lastLine = '';
  for await (const line of child.lines) {
    console.log(line);
    if (line.trim() !== '') lastLine = line.trim();
  }
  const { code } = await child.exited;
  return { seconds: Math.round((systemClock.monotonicMs() - started) / 1_000), passed: code === 0, lastLine };
}

/**
 * Returns the programs of `groups` that have a short form (`isQuick`) or a full form. `only` selects groups and programs by name, separated by
 * commas; `null` selects all. Throws `bad_request` for an unknown name, with a list of the known names.
 */
export function chosenPrograms(groups: readonly string[], isQuick: boolean, only: string | null): Chosen[] {
  const known = new Set([...groups, ...groups.flatMap((group) => partsOf(group).map(([name]) => name))]);
  const names = knownNames('only', only, [...known]);
  return groups.flatMap((group) =>
    partsOf(group).flatMap(([name, { quick, full }]) => {
      const form = isQuick ? quick : full;
      const isChosen = names === null || names.includes(name) || names.includes(group);
      return isChosen && form !== null ? [{ name, form }] : [];
    }),
  );
}

/** Runs the programs of groups, as the arguments of this process select them. `title` is the name of the run. */
export async function runSequence(title: string, groups: readonly string[]): Promise<void> {
  const { options, json } = readOptions({
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    fresh: { type: 'boolean', default: false },
  });
  const chosen = chosenPrograms(groups, options.quick, options.only ?? null);
  const results = readResults(stateOf(options.quick), options.fresh);
  mkdirSync(dirname(RESULTS), { recursive: true });
  for (const [index, one] of chosen.entries()) {
    const isKept = results.programs[one.name]?.passed === true;
    const words = [one.name, ...one.form].join(' ');
    console.log(`=== ${index + 1}/${chosen.length} ${words}${isKept ? ': passed before' : ''}`);
    if (isKept) continue;
    results.programs[one.name] = await run(one);
    writeFileSync(RESULTS, `${JSON.stringify(results, null, 2)}\n`);
  }
  const rows = chosen.map(({ name }) => ({
    name,
    ...(results.programs[name] ?? { seconds: 0, passed: false, lastLine: '' }),
  }));
  const failed = rows.filter(({ passed }) => !passed).length;
  const width = Math.max(0, ...rows.map(({ name }) => name.length));
  console.log('');
  for (const { name, seconds, passed, lastLine } of rows) {
    const verdict = passed ? 'passed' : 'FAILED';
    console.log(`${name.padEnd(width)}  ${String(seconds).padStart(5)} s  ${verdict}  ${lastLine.slice(0, MAX_LINE)}`);
  }
  const keys = { programs: rows.length, passed: rows.length - failed, failed, rows };
  const line = `\n${title}: ${keys.programs} programs, ${keys.passed} passed, ${failed} failed`;
  conclude({ line, keys, isPassed: failed === 0, json });
}

/** Runs the programs of all groups. */
export function runAll(): Promise<void> {
  return runSequence('all', Object.keys(PROGRAMS));
}
