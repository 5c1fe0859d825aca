// `npm run verify -- matrix`: runs every harness, in every dialect that it supports, through test cases (cells) such as sub-agents,
// compaction and engine failures. The harnesses are the real, unmodified programs. They run in sandboxes with the simulated engine, whose
// ledger records every sampled token.
//
//   npm run verify -- matrix [--mode tokens|chat] [--harness NAME]… [--dialect D]… [--cell C]… [--jobs N] [--keep] [--json [FILE]]
//                            [--capture DIR] [--install] [--write] [--samples N]

import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { cpus, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { GIB, isoNow, systemClock } from '@floe-rl/core';
import { dialectNameSchema } from '@floe-rl/core/schema';
import { harnessRegistry, harnessStatus, installHarness } from '@floe-rl/node';
import { DIALECTS } from '#capture/dialects/registry';
import { chooseBackend } from '#floe/commands/backend';
import { harnessDir } from '#floe/commands/home';
import { repositoryRoot } from '../../tools/repository.ts';
import { readOptions, refuseUnknown } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { RequestCapture } from './capture.ts';
import { type CellOptions, type MatrixMode, runCell, WAYS, type Way } from './cell.ts';
import { CELLS } from './cells.ts';
import { measureOverhead } from './overhead.ts';
import { type Adapter, CELL_NAMES, checkRow, type PlannedCell, planCells, type RunnableCell } from './plan.ts';
import { documentOf, jsonOf, lastLineOf, progressOf, type Report, type RunOutcome, tableOf } from './report.ts';
import type { Row } from './row.ts';
import { ROWS } from './rows.ts';

const { options, json } = readOptions({
  harness: { type: 'string', multiple: true, default: [] },
  dialect: { type: 'string', multiple: true, default: [] },
  cell: { type: 'string', multiple: true, default: [] },
  mode: { type: 'string', default: 'tokens' },
  jobs: { type: 'string', default: '2' },
  /**
   * Number of sessions that are measured for each row of the overhead table. When it is absent, only a run of the whole matrix or one
   * with --write measures the overhead.
   */
  samples: { type: 'string' },
  keep: { type: 'boolean', default: false },
  capture: { type: 'string' },
  install: { type: 'boolean', default: false },
  write: { type: 'boolean', default: false },
});

const DEFAULT_SAMPLES = 5;
/** Maximum number of problems of one test case that are printed at the end. */
const MAX_PRINTED_PROBLEMS = 5;

async function adaptersOf(rows: readonly Row[]): Promise<Map<string, Adapter>> {
  const registry = harnessRegistry();
  const adapters = new Map<string, Adapter>();
  for (const { harness } of rows) {
    const adapter = registry.get(harness);
    if (adapter === undefined) continue;
    if (options.install) await installHarness(harness, { cacheDir: harnessDir(), log: (line) => console.error(line) });
    const { installed } = await harnessStatus(harness, harnessDir());
    adapters.set(harness, { dialects: adapter.dialects, version: adapter.install?.version ?? null, installed });
  }
  return adapters;
}

type RunOptions = Omit<CellOptions, 'keepAlways'> & { readonly capture: RequestCapture | null };

/** Runs the planned test cases and prints a line when each ends. Returns the reports in the order of the plan. */
async function runAll(
  plan: readonly PlannedCell[],
  way: Way,
  { capture, ...cellOptions }: RunOptions,
): Promise<Report[]> {
  const reports = new Map<PlannedCell, Report>();
  const finish = (planned: PlannedCell, report: Report): void => {
    reports.set(planned, report);
    console.log(progressOf(reports.size, plan.length, report));
  };
  const runnable: (RunnableCell & { readonly skip: null })[] = [];
  for (const planned of plan) {
    if (planned.skip === null) runnable.push(planned);
    else finish(planned, { ...planned, problems: [], mismatches: 0, seconds: 0, kept: null });
  }
  const waiting = runnable.values();
  const work = async (): Promise<void> => {
    for (const planned of waiting) {
      if (cellOptions.signal.aborted) return;
      const report = await runCell(planned, CELLS[planned.cell], { ...cellOptions, keepAlways: options.keep }, way);
      if (report.sessionId !== null) await capture?.write(planned, report.sessionId);
      // A test case that was interrupted because the user stopped the run gets no report, so that it does not count as failed.
      if (!cellOptions.signal.aborted) finish(planned, { ...planned, ...report });
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, Number(options.jobs)) }, work));
  return plan.flatMap((planned) => reports.get(planned) ?? []);
}

function machineWords(): string {
  const gib = Math.round(totalmem() / GIB);
  return `a ${process.platform}-${process.arch} machine with ${cpus().length} cores and ${gib} GiB of memory, Node ${process.versions.node}`;
}

function printProblems(reports: readonly Report[]): void {
  for (const { kept, variant, dialect, cell, problems } of reports) {
    const name = `${variant.label} ${dialect} ${cell}`;
    for (const problem of problems.slice(0, MAX_PRINTED_PROBLEMS)) console.log(`${name}: ${problem}`);
    if (kept !== null) console.log(`${name}: material in ${kept}`);
  }
}

async function main(signal: AbortSignal): Promise<void> {
  const { harness, dialect, cell } = options;
  refuseUnknown(
    'harness',
    harness,
    ROWS.map((row) => row.harness),
  );
  refuseUnknown('cell', cell, CELL_NAMES);
  refuseUnknown('dialect', dialect, dialectNameSchema.options);
  refuseUnknown('mode', [options.mode], Object.keys(WAYS));
  const mode = options.mode as MatrixMode;
  ROWS.forEach(checkRow);
  const adapters = await adaptersOf(ROWS.filter((row) => harness.length === 0 || harness.includes(row.harness)));
  const served = DIALECTS.map(({ name }) => name);
  const plan = planCells(ROWS, { adapters, served, filter: { harness, dialect, cell } });
  const { backend, problem } = await chooseBackend();
  if (problem !== null) console.error(`agents run without isolation: ${problem.problem}`);
  const keepDir = await mkdtemp(join(tmpdir(), 'floe-matrix-kept-'));
  const capture = options.capture === undefined ? null : new RequestCapture(options.capture);

  const reports = await runAll(plan, WAYS[mode], { backend, keepDir, capture, signal });
  capture?.close();
  const isWhole = harness.length + dialect.length + cell.length === 0;
  const samples = Number(options.samples ?? (isWhole || options.write ? DEFAULT_SAMPLES : 0));
  const overhead = await measureOverhead(reports, { backend, samples, signal, onLine: (line) => console.log(line) });
  const date = isoNow(systemClock).slice(0, 10);
  const outcome: RunOutcome = { mode, reports, overhead, adapters, cells: CELLS, date, machine: machineWords() };
  console.log(`\n${tableOf(outcome)}\n`);
  printProblems(reports);
  if ((isWhole || options.write) && !signal.aborted) {
    await writeFile(join(repositoryRoot(), 'docs', 'measurements', 'compatibility.md'), documentOf(outcome));
  }
  if (reports.every(({ kept }) => kept === null)) await rm(keepDir, { recursive: true });
  const isPassed = !signal.aborted && reports.every(({ problems }) => problems.length === 0);
  conclude({ line: lastLineOf(reports), keys: jsonOf(outcome), isPassed, json });
}

const stopping = new AbortController();
for (const name of ['SIGINT', 'SIGTERM']) {
  process.once(name, () => {
    console.error('stopping; the cells that are running are taken down');
    stopping.abort(new Error(`stopped by ${name}`));
  });
}
await main(stopping.signal);
