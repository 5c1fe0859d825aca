// `npm run verify -- trainers`: exports random trajectories in the format of every trainer, and lets the trainers read them. Six trainers take
// an optimizer step on the CPU with the rows, and others check the rows with their own classes. A trainer that no package registry has is
// replaced by a validator written from its source. Installs the packages of trainers first (9 GB). Ends with "trainers: T trainers, R real
// steps, P passed, F failed".
//
//   npm run verify -- trainers [--only NAME]… [--source NAME=PATH]… [--rows N] [--seed N] [--jobs N] [--quick]
//                               [--sabotage shift|retokenise|mask] [--json [FILE]]
//   npm run verify -- trainers --install
//
// `--source` names a copy of the repository of a trainer that no package registry has. The trainer's own classes then read the rows instead of
// the validator. `--rows` is the number of random trajectories. `--quick` installs nothing, and skips the trainers whose packages are missing.
// `--sabotage` puts a defect into every record, and requires that every trainer reports it.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Semaphore, seededRandom } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { repositoryRoot } from '../../tools/repository.ts';
import { readOptions, refuseUnknown } from '../runner/options.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { run } from '../services/venv.ts';
import { exportFiles, writeFiles, writeOwnRows } from './exports.ts';
import { ENVIRONMENTS, type EnvironmentName, INSTALL_COMMAND, installEnvironment, installedPython } from './install.ts';
import { SABOTAGES, type Sabotage, sabotaged, sabotagedResults } from './sabotage.ts';
import { allTrainers, type Report, runTrainer, type Trainer, withSources } from './trainers.ts';
import { GROUP_SIZE, randomTrajectories, VOCABULARY, withLogprobs } from './trajectories.ts';

const { options, json } = readOptions({
  only: { type: 'string', multiple: true, default: [] },
  source: { type: 'string', multiple: true, default: [] },
  rows: { type: 'string', default: '1000' },
  seed: { type: 'string', default: '1' },
  jobs: { type: 'string', default: '2' },
  quick: { type: 'boolean', default: false },
  install: { type: 'boolean', default: false },
  sabotage: { type: 'string' },
});

/** Folder of the exported files, the tiny model and the logs of the programs. */
const FOLDER = join(repositoryRoot(), '.floe', 'trainers');
const MODEL_PROGRAM = join(repositoryRoot(), 'verify', 'trainers', 'programs', 'tiny_model.py');
/** Maximum number of failures of one trainer that are printed. */
const MAX_PRINTED = 3;

type Row = { readonly name: string; readonly report: Report | null; readonly note: string | null };

function selectedTrainers(): Trainer[] {
  const trainers = allTrainers();
  refuseUnknown(
    'trainer',
    options.only,
    trainers.map(({ name }) => name),
  );
  const selected = options.only.length === 0 ? trainers : trainers.filter(({ name }) => options.only.includes(name));
  return withSources(selected, options.source);
}

function selectedSabotage(): Sabotage | null {
  if (options.sabotage === undefined) return null;
  refuseUnknown('sabotage', [options.sabotage], SABOTAGES);
  return SABOTAGES.find((sabotage) => sabotage === options.sabotage) ?? null;
}

/** Installs the environments that are missing. Returns whether all could be installed. */
function install(names: readonly EnvironmentName[]): boolean {
  let ok = true;
  for (const name of names) {
    if (installedPython(name) !== null) continue;
    console.error(`▸ installing the packages of ${name}`);
    try {
      installEnvironment(name);
    } catch (error) {
      console.error(error instanceof Error ? error.message : error);
      ok = false;
    }
  }
  return ok;
}

/**
 * Writes the tiny model, and returns the logprobs that it gives to all tokens of all traces, by the id of the trace. Without a Python that has
 * torch, returns random logprobs, and no model is written.
 */
function modelLogprobs(results: readonly SessionResult[], random: () => number): Map<string, number[]> {
  const traces = results.flatMap(({ trajectory }) => trajectory?.traces ?? []);
  const sequences = traces.map(({ trace_id, prompt_ids, response_ids }) => ({
    id: trace_id,
    ids: [...prompt_ids, ...response_ids],
  }));
  const environment = (Object.keys(ENVIRONMENTS) as EnvironmentName[]).find((name) => installedPython(name) !== null);
  const python = environment === undefined ? null : installedPython(environment);
  if (python === null) return new Map(sequences.map(({ id, ids }) => [id, ids.map(() => -10 * random())]));
  const [input, output] = [join(FOLDER, 'sequences.jsonl'), join(FOLDER, 'logprobs.jsonl')];
  writeFileSync(input, sequences.map((sequence) => `${JSON.stringify(sequence)}\n`).join(''));
  console.error('▸ computing the logprobs of the trajectories with a tiny model');
  run(python, [MODEL_PROGRAM, join(FOLDER, 'model'), String(VOCABULARY), input, output]);
  const lines = readFileSync(output, 'utf8').split('\n').slice(0, -1);
  return new Map(lines.map((line, at) => [sequences[at]?.id ?? '', JSON.parse(line) as number[]]));
}

/** Writes the exports of random trajectories to {@link FOLDER}. */
function writeExports(sabotage: Sabotage | null): void {
  rmSync(FOLDER, { recursive: true, force: true });
  mkdirSync(FOLDER, { recursive: true });
  const random = seededRandom(Number(options.seed));
  const count = Math.ceil(Number(options.rows) / GROUP_SIZE) * GROUP_SIZE;
  const several = randomTrajectories(count, random, { oneTrace: false });
  const one = randomTrajectories(count, random, { oneTrace: true }).map(renamed);
  const logprobs = modelLogprobs([...several, ...one], random);
  const results = withLogprobs(several, logprobs);
  const files = exportFiles(results, withLogprobs(one, logprobs));
  writeFiles(FOLDER, sabotage === null ? files : sabotaged(files, sabotage, random));
  writeOwnRows(FOLDER, results, sabotage === null ? results : sabotagedResults(results, sabotage, random));
}

/** Gives the traces of a result other ids, since both sets of trajectories count their sessions from 0. */
function renamed(result: SessionResult): SessionResult {
  if (result.trajectory === null) return result;
  const traces = result.trajectory.traces.map((trace) => ({ ...trace, trace_id: `one-${trace.trace_id}` }));
  return { ...result, trajectory: { ...result.trajectory, traces } };
}

async function tested(trainer: Trainer): Promise<Row> {
  const { name, environment } = trainer;
  const python = environment === null ? 'python3' : installedPython(environment);
  if (python === null) {
    return {
      name,
      report: null,
      note: `skipped: its packages are not installed; install them with ${INSTALL_COMMAND}`,
    };
  }
  console.error(`▸ ${name}`);
  try {
    const report = await runTrainer(trainer, python, FOLDER, join(FOLDER, `${name}.log`));
    return { name, report, note: null };
  } catch (error) {
    return { name, report: null, note: `failed: ${error instanceof Error ? error.message : error}` };
  }
}

function printTable(rows: readonly Row[]): void {
  const head = ['name', 'trainer', 'version', 'how it was tested', 'rows', 'passed', 'failed', 'largest difference'];
  const cells = rows.map(({ name, report, note }) => {
    if (report === null) return [name, '', '', note ?? '', '', '', '', ''];
    const { trainer, version, how, passed, failed, largest_difference: difference } = report;
    const standIns = report.stand_ins.length === 0 ? '' : `, with stand-ins for ${report.stand_ins.join(', ')}`;
    return [name, trainer, version, how + standIns, report.rows, passed, failed, difference?.toExponential(1) ?? '–'];
  });
  console.log(tableOf(head, cells));
  for (const { name, report } of rows) {
    for (const failure of report?.failures.slice(0, MAX_PRINTED) ?? []) console.log(`${name}: ${failure}`);
  }
}

const trainers = selectedTrainers();
const sabotage = selectedSabotage();
const environments = trainers.flatMap(({ environment }) => (environment === null ? [] : [environment]));
if (options.install) process.exit(install(environments) ? 0 : 1);
if (!options.quick) install(environments);
writeExports(sabotage);
const slots = new Semaphore(Math.max(1, Number(options.jobs)));
const rows = await Promise.all(
  trainers.map(async (trainer) => {
    const release = await slots.acquire();
    try {
      return await tested(trainer);
    } finally {
      release();
    }
  }),
);
printTable(rows);

const reports = rows.flatMap(({ report }) => (report === null ? [] : [report]));
const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
const crashed = rows.filter(({ note }) => note?.startsWith('failed') === true).length;
const totals = {
  trainers: reports.length,
  real_steps: reports.filter(({ real_step }) => real_step).length,
  passed: sum(reports.map(({ passed }) => passed)),
  failed: sum(reports.map(({ failed }) => failed)) + crashed,
};
const caught = reports.filter(({ failed }) => failed > 0).length;
const skipped = rows.length - reports.length - crashed;
const { real_steps: steps, passed, failed } = totals;
const isGood = sabotage === null ? failed === 0 : caught === rows.length - skipped;
conclude({
  line:
    sabotage === null
      ? `\ntrainers: ${totals.trainers} trainers, ${steps} real steps, ${passed} passed, ${failed} failed`
      : `\nsabotage ${sabotage}: ${caught} of ${rows.length - skipped} trainers reported it`,
  keys: { ...totals, rows: rows.map(({ name, report, note }) => ({ name, ...(report ?? {}), note })) },
  isPassed: isGood && reports.length > 0,
  json,
});
