// `npm run verify -- datasets`: exports made-up sessions with hostile content as sets. Reads the sets with pyarrow, DuckDB, `datasets` and
// Harbor's models, imports them, and compares every field. Then kills exports, and measures the CPU time.
//
//   npm run verify -- datasets [--tasks N] [--tokens N] [--seed N] [--quick] [--json]
//
// `--tokens` is the approximate number of tokens of a trace. Ends with "datasets: rows R, differences 0". R counts the sessions that all
// readers read.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, rm, watch, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError, MIB } from '@floe-rl/core';
import { parseCondition, readSessions, SET_FORMATS, type SetEncoding, type SetFormat, writeSet } from '@floe-rl/data';
import { parseSetRow, rowText, type SetRow } from '#data/session-sets/set-row';
import { cacheDir } from '#floe/commands/cache-dir';
import { machine, round } from '../../bench/report.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { FLOE } from '../runner/floe.ts';
import { readOptions } from '../runner/options.ts';
import { conclude } from '../runner/report.ts';
import { findPython, run, venvWith } from '../services/venv.ts';
import { madeUpSessions } from './sessions.ts';

const { options, json } = readOptions({
  tasks: { type: 'string' },
  tokens: { type: 'string' },
  seed: { type: 'string', default: '1' },
  quick: { type: 'boolean', default: false },
});
const TASKS = Number(options.tasks ?? (options.quick ? 20 : 80));
const TOKENS = Number(options.tokens ?? (options.quick ? 400 : 4_000));
const SAMPLES = 8;
/** Maximum size of one file of a set, in bytes. It is small, so that a set has several files. */
const SHARD_BYTES = options.quick ? MIB / 4 : 16 * MIB;
/** The sessions whose export is measured. They are long, because the measured set has files of 64 MiB. */
const MEASURED = { seed: 3, tasks: 12, samples: SAMPLES, tokens: 20_000 };
const RUNS = options.quick ? 5 : 15;
const KILLS = options.quick ? 3 : 20;

/** The Python packages of the readers. Harbor is installed without its dependencies, because its models of trajectories need only pydantic. */
const INSTALLS = [
  ['pyarrow==26.0.1', 'duckdb==2.0.1', 'datasets==5.2.0', 'pydantic==2.14.4'],
  ['--no-deps', 'harbor==0.26.0'],
];
const CHATS = SET_FORMATS.filter((format) => format !== 'sessions');

async function* yielded(rows: readonly SetRow[]): AsyncGenerator<SetRow> {
  yield* rows;
}

function setOf(
  dir: string,
  rows: readonly SetRow[],
  format: SetFormat,
  encoding: SetEncoding,
  shardBytes = SHARD_BYTES,
) {
  const conditions = [parseCondition('reward>=1')];
  const fixed = { splitKey: 'task_id', by: 'metadata.repo', minMargin: 0, skipped: () => ({}) };
  const split = 'train=0.7,test=0.3';
  return writeSet(yielded(rows), { dir, format, encoding, split, conditions, shardBytes, ...fixed });
}

async function imported(path: string): Promise<Map<string, string>> {
  const texts = new Map<string, string>();
  for await (const row of readSessions(path)) {
    if (texts.has(row.session_id)) throw new Error(`${path}: the session ${row.session_id} occurs twice`);
    texts.set(row.session_id, rowText(row));
  }
  return texts;
}

/** Returns the sessions that differ between what was exported and what was imported. */
function importProblems(wanted: ReadonlyMap<string, string>, found: ReadonlyMap<string, string>): string[] {
  const ids = new Set([...wanted.keys(), ...found.keys()]);
  return [...ids].filter((id) => wanted.get(id) !== found.get(id)).map((id) => `${id} differs after the import`);
}

/** Kills exports while they write. Returns a sentence for each incomplete folder that a reader accepted as a set. */
async function killProblems(results: string, dir: string): Promise<string[]> {
  const problems: string[] = [];
  for (let kill = 0; kill < KILLS; kill++) {
    const home = join(dir, `kill-${kill}`);
    await mkdir(home);
    const encoding = kill % 2 === 0 ? 'jsonl' : 'parquet';
    const args = ['export', '--from', results, '-f', 'sessions', '--encoding', encoding, '-o', join(home, 'set')];
    const stopped = new AbortController();
    const child = spawn(process.execPath, [FLOE, ...args], { stdio: 'ignore' });
    const ended = once(child, 'exit').finally(() => stopped.abort());
    // The n-th export is killed at the n-th change in its folder.
    let events = 0;
    try {
      for await (const _ of watch(home, { recursive: true, signal: stopped.signal })) {
        if (events++ === kill) child.kill('SIGKILL');
      }
    } catch (error) {
      if (!stopped.signal.aborted) throw error;
    }
    await ended;
    for (const name of await readdir(home)) {
      const refused = await imported(join(home, name)).then(
        () => false,
        (error: unknown) => FloeError.is(error) && error.code === 'corrupt_record',
      );
      if (name !== 'set' && !refused) problems.push(`a folder ${name} of a killed export was read`);
      if (name === 'set' && refused) problems.push('a folder with the final name is not complete');
    }
    await rm(home, { recursive: true });
  }
  return problems;
}

/** Returns the number of tokens that an export writes per second of CPU time, files included, in the fastest of several runs. */
async function rateOf(dir: string, rows: readonly SetRow[], encoding: SetEncoding): Promise<number> {
  const rates: number[] = [];
  for (let count = 0; count < RUNS + 1; count++) {
    const start = process.cpuUsage();
    const { tokens } = await setOf(join(dir, `rate-${count}`), rows, 'sessions', encoding, 64 * MIB);
    const { user, system } = process.cpuUsage(start);
    // The first run compiles the code and loads the library.
    if (count > 0) rates.push((tokens / (user + system)) * 1e6);
    await rm(join(dir, `rate-${count}`), { recursive: true });
  }
  return Math.max(...rates);
}

const dir = await mkdtemp(join(tmpdir(), 'floe-datasets-'));
try {
  const { python } = venvWith(join(cacheDir(), 'datasets'), INSTALLS, findPython(12, 13));
  const rows = [...madeUpSessions({ seed: Number(options.seed), tasks: TASKS, samples: SAMPLES, tokens: TOKENS })];
  const wanted = new Map(rows.map((row) => [row.session_id, rowText(row)]));
  const results = join(dir, 'results.jsonl');
  await writeFile(results, [...wanted.values()].map((text) => `${text}\n`).join(''));
  const [parquet, jsonl] = [join(dir, 'parquet'), join(dir, 'jsonl')];
  await setOf(parquet, rows, 'sessions', 'parquet');
  await setOf(jsonl, rows, 'sessions', 'jsonl');
  for (const format of CHATS) await setOf(join(dir, format), rows, format, 'jsonl');
  const program = join(repositoryRoot(), 'verify', 'datasets', 'read_sets.py');
  const paths = [results, parquet, jsonl, ...CHATS.map((format) => join(dir, format))];
  const readers = JSON.parse(run(python, [program, ...paths])) as Record<string, string[]>;
  const checks: Record<string, readonly string[]> = {
    ...readers,
    'import of Parquet': importProblems(wanted, await imported(parquet)),
    'import of JSON lines': importProblems(wanted, await imported(jsonl)),
    'import of results': importProblems(wanted, await imported(results)),
    'killed exports': await killProblems(results, dir),
  };
  const differences = Object.values(checks).reduce((sum, problems) => sum + problems.length, 0);
  for (const [name, problems] of Object.entries(checks)) {
    console.log(`${name.padEnd(22)} ${problems.length === 0 ? 'no difference' : `${problems.length} differences`}`);
    for (const problem of problems.slice(0, 5)) console.log(`  ${problem}`);
  }
  // The rows are parsed from JSON, as floe gets them from a server or a file, because V8 stores lists that JSON.parse made differently.
  const measured = [...madeUpSessions(MEASURED)].map((row) => parseSetRow(JSON.parse(rowText(row)), row.session_id));
  const jsonlRate = await rateOf(dir, measured, 'jsonl');
  const parquetRate = await rateOf(dir, measured, 'parquet');
  const rates = [jsonlRate, parquetRate].map((rate) => `${round(rate / 1e6)} M`);
  console.log(`tokens per CPU second: ${rates[0]} as JSON lines, ${rates[1]} as Parquet`);
  const measures = { jsonl_tokens_per_cpu_s: round(jsonlRate, 0), parquet_tokens_per_cpu_s: round(parquetRate, 0) };
  conclude({
    line: `datasets: rows ${rows.length}, differences ${differences}`,
    keys: { rows: rows.length, differences, ...measures, machine: machine() },
    isPassed: differences === 0,
    json,
  });
} finally {
  await rm(dir, { recursive: true, force: true });
}
