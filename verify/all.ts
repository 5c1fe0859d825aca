// `npm run verify -- all [--quick] [--only NAME,NAME] [--fresh] [--json]`: runs the verification programs one after the other, and prints a table of them
// at the end.
//
// `--quick` runs the short form of each program, which takes an hour at most on two cores. An interrupted run continues with the program that it
// was interrupted in: results are kept for the commit, as long as nothing is changed. `--fresh` forgets them.
// Ends with "all: N programs, P passed, F failed".
import { execFileSync, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { systemClock } from '@floe-rl/core';
import { knownNames } from '../tools/known-names.ts';
import { repositoryRoot } from '../tools/repository.ts';

type Form = readonly string[];
/** The arguments of a program in each form; `null` when the form leaves it out. */
type Entry = { readonly quick: Form | null; readonly full: Form };

const ROOT = repositoryRoot();
/** Where results are kept, so that an interrupted run continues. */
const RESULTS = join(ROOT, '.floe', 'verify-all.json');

/** The programs in the order in which they run: those that find most, first. */
const PROGRAMS: Readonly<Record<string, Entry>> = {
  install: { quick: [], full: [] },
  tests: { quick: null, full: [] },
  golden: { quick: [], full: [] },
  simulate: { quick: ['--seeds', '100', '--planted'], full: ['--seeds', '1500', '--planted'] },
  fidelity: { quick: ['--tokens', '10000'], full: ['--tokens', '200000'] },
  crash: { quick: ['--points', '2', '--kills', '3', '--sessions', '20'], full: [] },
  faults: { quick: ['--quick', '--store', 'sqlite', '--suite', 'S3', '--suite', 'S18'], full: [] },
  mutations: { quick: null, full: [] },
  matrix: { quick: ['--samples', '0', '--cell', 'edit', '--cell', 'subagent'], full: [] },
  conformance: { quick: ['--mode=tokens'], full: [] },
  engines: { quick: ['llama_cpp'], full: [] },
  hostile: { quick: ['--quick'], full: [] },
  cheats: { quick: ['--quick'], full: [] },
  escape: { quick: ['--parallel', '0', '--only', 'bubblewrap'], full: [] },
  transfers: { quick: null, full: [] },
  runtimes: { quick: null, full: [] },
  fuzz: { quick: ['--quick'], full: [] },
  batches: { quick: ['--quick'], full: [] },
  generate: { quick: ['--quick'], full: [] },
  cluster: { quick: ['--sessions', '30', '--harness', 'shell'], full: [] },
  envs: { quick: ['--quick'], full: [] },
  worlds: { quick: null, full: [] },
  dashboard: { quick: ['--quick'], full: [] },
  docs: { quick: ['--quick'], full: [] },
  examples: { quick: [], full: [] },
  notebooks: { quick: null, full: [] },
  datasets: { quick: ['--quick'], full: [] },
  packages: { quick: ['--quick'], full: [] },
  clients: { quick: [], full: [] },
  registrations: { quick: null, full: [] },
  swebench: { quick: null, full: [] },
  'swebench-guide': { quick: [], full: [] },
  harbor: { quick: ['--only', 'docker', '--samples', '1'], full: [] },
  trainers: {
    quick: ['--quick', '--rows', '100', '--only', 'slime', '--only', 'prime_rl', '--only', 'nemo_rl'],
    full: [],
  },
  'trainer-pages': { quick: null, full: [] },
  learn: { quick: null, full: [] },
  'learn-real': { quick: null, full: [] },
};

type Result = { readonly seconds: number; readonly passed: boolean; readonly lastLine: string };
type Results = { readonly state: string; readonly programs: Record<string, Result> };

const { values: options } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    fresh: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
});

/** Returns what identifies the run: the commit, the changes of the checkout and the form. */
function stateOf(): string {
  const git = (...args: readonly string[]): string =>
    execFileSync('git', args, { cwd: ROOT, encoding: 'utf8', maxBuffer: 2 ** 28 });
  const changes = git('status', '--porcelain') === '' ? '' : git('diff', 'HEAD');
  const digest = createHash('sha256').update(changes).digest('hex').slice(0, 12);
  return `${git('rev-parse', 'HEAD').trim()} ${digest} ${options.quick ? 'quick' : 'full'}`;
}

function readResults(state: string): Results {
  const none = { state, programs: {} };
  if (options.fresh) return none;
  try {
    const kept = JSON.parse(readFileSync(RESULTS, 'utf8')) as Results;
    return kept.state === state ? kept : none;
  } catch (error) {
    if (error instanceof SyntaxError || (error as NodeJS.ErrnoException).code === 'ENOENT') return none;
    throw error;
  }
}

/** Runs a program with its output shown, and resolves with how it ended. */
async function run(name: string, args: Form): Promise<Result> {
  const started = systemClock.monotonicMs();
  const command = name === 'tests' ? ['test', '--all', ...args] : ['verify', name, ...args];
  const child = spawn(process.execPath, [join(ROOT, 'tools', 'run.js'), ...command], {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (status) => resolve(status));
  });
  let lastLine = '';
  for await (const line of createInterface({ input: child.stdout })) {
    console.log(line);
    if (line.trim() !== '') lastLine = line.trim();
  }
  const status = await ended;
  return { seconds: Math.round((systemClock.monotonicMs() - started) / 1_000), passed: status === 0, lastLine };
}

function chosenPrograms(): (readonly [string, Form])[] {
  const only = knownNames('only', options.only ?? null, Object.keys(PROGRAMS));
  return Object.entries(PROGRAMS).flatMap(([name, { quick, full }]) => {
    const isChosen = only === null || only.includes(name);
    const form = options.quick ? quick : full;
    return isChosen && form !== null ? [[name, form] as const] : [];
  });
}

const chosen = chosenPrograms();
const results = readResults(stateOf());
mkdirSync(dirname(RESULTS), { recursive: true });
for (const [index, [name, form]] of chosen.entries()) {
  const kept = results.programs[name];
  console.log(`=== ${index + 1}/${chosen.length} ${name} ${form.join(' ')}${kept?.passed ? ': passed before' : ''}`);
  if (kept?.passed) continue;
  results.programs[name] = await run(name, form);
  writeFileSync(RESULTS, `${JSON.stringify(results, null, 2)}\n`);
}

const rows = chosen.map(([name]) => ({
  name,
  ...(results.programs[name] ?? { seconds: 0, passed: false, lastLine: '' }),
}));
const failed = rows.filter(({ passed }) => !passed).length;
const width = Math.max(...rows.map(({ name }) => name.length));
console.log('');
for (const { name, seconds, passed, lastLine } of rows) {
  const verdict = passed ? 'passed' : 'FAILED';
  console.log(`${name.padEnd(width)}  ${String(seconds).padStart(5)} s  ${verdict}  ${lastLine.slice(0, 120)}`);
}
console.log(`\nall: ${rows.length} programs, ${rows.length - failed} passed, ${failed} failed`);
if (options.json) console.log(JSON.stringify({ programs: rows.length, passed: rows.length - failed, failed, rows }));
if (failed > 0) process.exitCode = 1;
