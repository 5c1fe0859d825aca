// Every harness, in every dialect that it speaks, through every kind of trouble: real unchanged programs in sandboxes against
// the simulated engine, whose ledger says what was sampled.
//
//   node matrix/run.mjs [--harness NAME]… [--dialect D]… [--cell C]… [--jobs N] [--keep] [--json FILE] [--capture DIR]
//                       [--install] [--write] [--samples N]
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { cpus, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { chooseBackend } from '../dist/cli/backend.js';
import { harnessDir } from '../dist/cli/home.js';
import { DIALECTS } from '../dist/dialects/registry.js';
import { harnessStatus, installHarness } from '../dist/harnesses/install/install.js';
import { harnessRegistry } from '../dist/harnesses/registry.js';
import { captureRequests } from './capture.mjs';
import { runCell } from './cell.mjs';
import { measureOverhead } from './overhead.mjs';
import { CELL_NAMES, checkRow, planCells } from './plan.mjs';
import { documentOf, jsonOf, lastLineOf, progressOf, tableOf } from './report.mjs';

const { values: options } = parseArgs({
  options: {
    harness: { type: 'string', multiple: true, default: [] },
    dialect: { type: 'string', multiple: true, default: [] },
    cell: { type: 'string', multiple: true, default: [] },
    jobs: { type: 'string', default: '2' },
    /** Sessions for each line of the overhead table; a partial run measures none unless told to. */
    samples: { type: 'string' },
    keep: { type: 'boolean', default: false },
    json: { type: 'string' },
    capture: { type: 'string' },
    install: { type: 'boolean', default: false },
    write: { type: 'boolean', default: false },
  },
});

const DEFAULT_SAMPLES = 5;
const DOCUMENT = new URL('../../docs/compatibility.md', import.meta.url);

async function loadRows() {
  const dir = new URL('./rows/', import.meta.url);
  const rows = [];
  for (const file of (await readdir(dir)).filter((name) => name.endsWith('.mjs')).sort()) {
    const { row } = await import(new URL(file, dir).href);
    checkRow(row, file);
    rows.push(row);
  }
  return rows;
}

async function loadCells() {
  const cells = new Map();
  for (const name of CELL_NAMES) cells.set(name, (await import(`./cells/${name}.mjs`)).cell);
  return cells;
}

async function adaptersOf(rows) {
  const registry = harnessRegistry();
  const adapters = new Map();
  for (const { harness } of rows) {
    const adapter = registry.get(harness);
    if (adapter === undefined) continue;
    if (options.install) await installHarness(harness, { cacheDir: harnessDir(), log: (text) => console.error(text) });
    const { installed } = await harnessStatus(harness, harnessDir());
    adapters.set(harness, { dialects: adapter.dialects, version: adapter.install?.version ?? null, installed });
  }
  return adapters;
}

function refuseUnknown(name, asked, known) {
  const unknown = asked.find((value) => !known.includes(value));
  if (unknown !== undefined) throw new Error(`--${name} ${unknown}: there is ${known.join(', ')}`);
}

/** Takes work from one list with `jobs` workers. */
async function inParallel(jobs, list, work) {
  const waiting = [...list];
  await Promise.all(
    Array.from({ length: jobs }, async () => {
      for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) await work(next);
    }),
  );
}

async function runAll(plan, cells, { backend, keepDir, capture, signal }) {
  const done = [];
  let number = 0;
  const finish = (planned, report) => {
    done.push({ ...planned, ...report });
    number++;
    console.log(progressOf(number, plan.length, { ...planned, ...report }));
  };
  for (const planned of plan.filter(({ skip }) => skip !== null)) {
    finish(planned, { problems: [], mismatches: 0, seconds: 0, kept: null });
  }
  const toRun = plan.filter(({ skip }) => skip === null);
  await inParallel(Math.max(1, Number(options.jobs)), toRun, async (planned) => {
    if (signal.aborted) return;
    const report = await runCell(planned, cells.get(planned.cell), {
      backend,
      keepDir,
      keepAlways: options.keep,
      signal,
    });
    await capture?.write(planned, report.sessionId);
    // Not its own failure.
    if (signal.aborted) return;
    finish(planned, report);
  });
  return plan.map((planned) => done.find((other) => sameCell(other, planned))).filter((one) => one !== undefined);
}

const sameCell = (a, b) => a.variant === b.variant && a.dialect === b.dialect && a.cell === b.cell && a.row === b.row;

function machineWords() {
  const gib = Math.round(totalmem() / 2 ** 30);
  return `a ${process.platform}-${process.arch} machine with ${cpus().length} cores and ${gib} GiB of memory, Node ${process.versions.node}`;
}

async function main(signal) {
  const [rows, cells] = [await loadRows(), await loadCells()];
  refuseUnknown(
    'harness',
    options.harness,
    rows.map(({ harness }) => harness),
  );
  refuseUnknown('cell', options.cell, CELL_NAMES);
  refuseUnknown('dialect', options.dialect, ['openai_chat', 'anthropic', 'openai_responses', 'gemini']);
  const adapters = await adaptersOf(
    rows.filter(({ harness }) => options.harness.length === 0 || options.harness.includes(harness)),
  );
  const served = DIALECTS.map(({ name }) => name);
  const plan = planCells(rows, { adapters, served, filter: options });
  const { backend, problem } = await chooseBackend();
  if (problem !== null) console.error(`agents run without isolation: ${problem.problem}`);
  const keepDir = await mkdtemp(join(tmpdir(), 'floe-matrix-kept-'));
  const capture = options.capture === undefined ? null : captureRequests(options.capture);

  const reports = await runAll(plan, cells, { backend, keepDir, capture, signal });
  capture?.close();
  const whole = options.harness.length + options.dialect.length + options.cell.length === 0;
  const samples = Number(options.samples ?? (whole || options.write ? DEFAULT_SAMPLES : 0));
  const overhead = await measureOverhead(reports, cells, {
    backend,
    samples,
    signal,
    note: (text) => console.log(text),
  });
  const date = new Date().toISOString().slice(0, 10);
  const outcome = { reports, overhead, adapters, cells, date, machine: machineWords() };
  console.log(`\n${tableOf(outcome)}\n`);
  for (const { kept, variant, dialect, cell, problems } of reports) {
    for (const text of problems.slice(0, 5)) console.log(`${variant.label} ${dialect} ${cell}: ${text}`);
    if (kept !== null) console.log(`${variant.label} ${dialect} ${cell}: material in ${kept}`);
  }
  if ((whole || options.write) && !signal.aborted) await writeFile(DOCUMENT, documentOf(outcome));
  if (options.json !== undefined) await writeFile(options.json, `${JSON.stringify(jsonOf(outcome), null, 1)}\n`);
  if (reports.every(({ kept }) => kept === null)) await rm(keepDir, { recursive: true });
  console.log(lastLineOf(reports));
  if (signal.aborted || reports.some(({ problems }) => problems.length > 0)) process.exitCode = 1;
}

const stopping = new AbortController();
for (const name of ['SIGINT', 'SIGTERM']) {
  process.once(name, () => {
    console.error('stopping; the cells that are running are taken down');
    stopping.abort(new Error(`stopped by ${name}`));
  });
}
await main(stopping.signal);
