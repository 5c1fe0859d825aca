// `npm run verify -- runtimes`: runs the contract suite of every runtime that works on this machine, measures starts and commands, and prints
// what each runtime enforces. Installs the packages of the runtimes that it can. Ends with "runtimes: R ran, P passed, F failed, S skipped":
// runtimes that ran, tests that passed and failed, and runtimes that could not run, each with its reason.
//
//   npm run verify -- runtimes [--only TEXT] [--json [FILE]]
//
// Apptainer, and Podman a second time, run as a user without root privileges. `--only` selects the runtimes whose name contains TEXT.

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import type { Enforcement, LimitField } from '#sandbox/api/runtime';
import { cellKeys, measureCells } from '../../bench/tools/cells.ts';
import { measureShells, shellKeys } from '../../bench/tools/shells.ts';
import { repositoryRoot } from '../../tools/repository.ts';
import { vitestProgram } from '../../tools/vitest.ts';
import { readOptions } from '../runner/options.ts';
import { conclude, tableOf } from '../runner/report.ts';
import { firstMissing } from '../services/container-engine.ts';
import { installJupyter } from '../services/jupyter.ts';
import { TOOLS } from '../services/tools.ts';
import { runNode, unprivilegedMissing } from '../services/unprivileged.ts';
import type { Measurement } from './measure.ts';

const { options, json } = readOptions({ only: { type: 'string', default: '' } });

const isRoot = process.getuid?.() === 0;

/** Debian packages of the runtimes, by a program of each. */
const PACKAGES = { bwrap: 'bubblewrap', dockerd: 'docker.io', runc: 'runc', podman: 'podman', newuidmap: 'uidmap' };

/** A runtime as a certain user. */
type Variant = { readonly name: string; readonly backend: RuntimeBackend; readonly asUser: boolean };

const VARIANTS: readonly Variant[] = [
  { name: 'bubblewrap', backend: 'bubblewrap', asUser: false },
  { name: 'docker', backend: 'docker', asUser: false },
  { name: 'podman', backend: 'podman', asUser: false },
  ...(isRoot ? [{ name: 'podman rootless', backend: 'podman' as const, asUser: true }] : []),
  { name: 'apptainer', backend: 'apptainer', asUser: isRoot },
  { name: 'local', backend: 'local', asUser: false },
  { name: 'none', backend: 'none', asUser: false },
];

type Row = {
  readonly name: string;
  readonly passed: number;
  readonly failed: number;
  /** Reason why the runtime could not run; `null` when it ran. */
  readonly skipped: string | null;
  readonly measurement: Measurement | null;
};

function install(): void {
  const missing = Object.entries(PACKAGES).filter(([program]) => firstMissing([program]) !== null);
  if (isRoot && missing.length > 0 && firstMissing(['apt-get']) === null) {
    const packages = missing.map(([, name]) => name);
    console.error(`▸ apt-get install ${packages.join(' ')}`);
    spawnSync('apt-get', ['install', '-qq', '-y', '--no-install-recommends', ...packages], { stdio: 'ignore' });
  }
  try {
    TOOLS.find(({ programs }) => programs.includes('apptainer'))?.install();
  } catch (error) {
    console.error((error as Error).message);
  }
}

async function runTests({ name, backend, asUser }: Variant): Promise<Omit<Row, 'measurement'>> {
  const file =
    backend === 'none'
      ? 'packages/sandbox/test/integration/backends/none.test.ts'
      : 'packages/sandbox/test/integration/backends/contract.test.ts';
  const reporter = '--reporter=./tools/summary-reporter.ts';
  const vitest = [vitestProgram(), 'run', file, reporter, '--no-cache', '--configLoader', 'runner'];
  const { stdout } = await runNode([...vitest, '-t', `the ${backend} runtime`], { asUser });
  const closing = /^(\d+) passed, (\d+) failed$/m.exec(stdout);
  const [passed, failed] = closing === null ? [0, 1] : [Number(closing[1]), Number(closing[2])];
  if (failed > 0) console.log(`FAILED ${name}\n${stdout}`);
  if (passed + failed > 0) return { name, passed, failed, skipped: null };
  // Vitest reports tests of other runtimes as skipped without a reason, so these are not matched.
  const reason = /^ *\d+ tests?: (?!no reason given)(.*)$/m.exec(stdout)?.[1];
  return { name, passed, failed, skipped: reason ?? 'its tests were skipped' };
}

async function measure({ name, backend, asUser }: Variant): Promise<Measurement | null> {
  const program = join(repositoryRoot(), '.build', 'verify', 'runtimes', 'measure.js');
  const { status, stdout } = await runNode([program, backend], { asUser });
  if (status === 0) return JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Measurement;
  console.log(`FAILED ${name}: the measurement ended with ${status}`);
  return null;
}

async function run(variant: Variant): Promise<Row> {
  const { name, asUser } = variant;
  console.log(`▸ ${name}`);
  const missing = asUser ? unprivilegedMissing() : null;
  const tests = missing === null ? await runTests(variant) : { name, passed: 0, failed: 0, skipped: missing };
  if (tests.skipped !== null) console.log(`${name} is skipped, because ${tests.skipped}`);
  const measurement = tests.skipped === null ? await measure(variant) : null;
  const isBroken = tests.skipped === null && measurement === null;
  return { ...tests, failed: tests.failed + (isBroken ? 1 : 0), measurement };
}

function runtimeTable(rows: readonly Row[]): string {
  const limits: readonly LimitField[] = ['memory_mb', 'max_processes', 'cpus', 'storage_mb', 'max_output_mb'];
  const head = ['runtime', 'isolation', ...limits, 'networks', 'gateway may be', 'snapshots'];
  const cells = rows.map(({ name, measurement, passed, failed }) => {
    if (measurement === null) return [name, ...Array(head.length + 7).fill('–')];
    const { capabilities, start_p50_ms, starts_per_s, exec_p50_ms, shell_p50_ms, memory_mb } = measurement;
    const { snapshot_p50_ms, restore_p50_ms } = measurement;
    const enforced = (field: LimitField): Enforcement | '–' => capabilities.limits?.[field] ?? '–';
    const numbers = [start_p50_ms, starts_per_s, exec_p50_ms, shell_p50_ms, snapshot_p50_ms, restore_p50_ms, memory_mb];
    const figures = numbers.map((value) => value?.toFixed(1) ?? '–');
    return [
      ...[name, capabilities.isolation, ...limits.map(enforced)],
      ...[
        capabilities.networks.join(' ') || '–',
        PRIVILEGES[capabilities.privileges],
        capabilities.snapshots.method,
        ...figures,
      ],
      failed === 0 ? `${passed} passed` : `${failed} failed`,
    ];
  });
  const titles = [
    ...head,
    'start p50 ms',
    'starts/s',
    'exec p50 ms',
    'shell p50 ms',
    'snapshot p50 ms',
    'restore p50 ms',
    'memory MiB',
    'tests',
  ];
  return tableOf(titles, cells);
}

const PRIVILEGES = { any: 'any user', engine: 'a user of the engine', not_root: 'any user but root' };

/** Number of sessions whose shells are measured at the same time, number of rounds, and number of commands and of cells per round. */
const TOOLS_MEASURED = { sessions: 64, rounds: 2, commands: 10, cells: 100 };

const NO_TOOL_KEYS = { shell_p50_ms: null, shell_over_tmux: null, ipython_p50_ms: null, ipython_over_jupyter: null };

/** Measures floe's shells and Python against tmux and Jupyter. The figures are `null` where they cannot be measured. */
async function toolKeys(): Promise<Record<string, number | null>> {
  console.log('▸ tools');
  const { sessions, rounds, commands, cells } = TOOLS_MEASURED;
  try {
    const shells = shellKeys(await measureShells(sessions, rounds, commands));
    const python = cellKeys(await measureCells(installJupyter(), rounds, cells));
    return { ...shells, ...python };
  } catch (error) {
    console.log(`the tools could not be measured: ${(error as Error).message}`);
    return NO_TOOL_KEYS;
  }
}

install();
const rows: Row[] = [];
for (const variant of VARIANTS.filter(({ name }) => name.includes(options.only))) rows.push(await run(variant));
const sum = (of: (row: Row) => number): number => rows.reduce((total, row) => total + of(row), 0);
const totals = {
  ran: rows.filter(({ skipped }) => skipped === null).length,
  passed: sum(({ passed }) => passed),
  failed: sum(({ failed }) => failed),
  skipped: rows.filter(({ skipped }) => skipped !== null).length,
};
const bubblewrap = rows.find(({ name }) => name === 'bubblewrap')?.measurement;
const keys = {
  ...totals,
  start_p50_ms: bubblewrap?.start_p50_ms ?? null,
  starts_per_s: bubblewrap?.starts_per_s ?? null,
  snapshot_p50_ms: bubblewrap?.snapshot_p50_ms ?? null,
  restore_p50_ms: bubblewrap?.restore_p50_ms ?? null,
  ...(options.only === '' ? await toolKeys() : NO_TOOL_KEYS),
  runtimes: rows,
};
console.log(`\n${runtimeTable(rows)}\n`);
const line = `runtimes: ${totals.ran} ran, ${totals.passed} passed, ${totals.failed} failed, ${totals.skipped} skipped`;
conclude({ line, keys, isPassed: totals.failed === 0 && totals.ran > 0, json });
