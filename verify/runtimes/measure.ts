// Measures one runtime and prints the results as one line of JSON. `main.ts` starts it, as root or as another user.
//
//   node measure.js BACKEND
import { mkdirSync, mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MIB, removeTree, systemClock } from '@floe-rl/core';
import { type RuntimeBackend, runtimeBackendSchema, runtimeSpecSchema } from '@floe-rl/core/schema';
import type { Runtime, RuntimeCapabilities, RuntimeSnapshot } from '@floe-rl/sandbox';
import { percentile } from '../../bench/report.ts';
import { makeImage } from '../fixtures/image.ts';
import { openRuntime } from '../services/runtime-provider.ts';

/**
 * Number of sandboxes that are started one after the other, number of commands, and number of sandboxes that are started as fast as possible.
 */
const STARTS = 15;
const COMMANDS = 50;
const BURST = 40;
/** Number of sandboxes of the burst that start concurrently. */
const CONCURRENCY = 8;
/**
 * The tree of files whose snapshots are measured (100 MB in all): its number of files and the bytes of each file. Then the number of snapshots
 * and restores.
 */
const TREE_FILES = 1_000;
const TREE_FILE_BYTES = 100_000;
const SNAPSHOTS = 10;
const RESTORES = 15;

/** Maximum time in milliseconds of a command in a shell. */
const SHELL_LIMIT_MS = 60_000;

const IMAGE = 'floe-measure';
const never = new AbortController().signal;

export type Measurement = {
  readonly capabilities: RuntimeCapabilities;
  /** Median time in milliseconds until a sandbox has started. */
  readonly start_p50_ms: number | null;
  /** Sandboxes per second, with {@link CONCURRENCY} starts at a time; `null` when the sandboxes run no commands. */
  readonly starts_per_s: number | null;
  /** Median time in milliseconds of `/bin/sh -c :`; `null` when the sandboxes run no commands. */
  readonly exec_p50_ms: number | null;
  /** Median time in milliseconds of a command in a shell that keeps its state; `null` when the sandboxes run no commands. */
  readonly shell_p50_ms: number | null;
  /** Proportional memory in MiB of the idle processes of a sandbox; `null` when it has none. */
  readonly memory_mb: number | null;
} & SnapshotTimes;

/** Median times in milliseconds with a workdir of 100 MB in 1000 files; `null` when the back end takes no snapshots. */
type SnapshotTimes = {
  readonly snapshot_p50_ms: number | null;
  /** Time of the first command after a snapshot. */
  readonly after_snapshot_p50_ms: number | null;
  readonly restore_p50_ms: number | null;
  /** Time of the first command after a restore. */
  readonly after_restore_p50_ms: number | null;
};

const NO_SNAPSHOT_TIMES: SnapshotTimes = {
  snapshot_p50_ms: null,
  after_snapshot_p50_ms: null,
  restore_p50_ms: null,
  after_restore_p50_ms: null,
};

async function measure(backend: RuntimeBackend): Promise<Measurement> {
  const dir = mkdtempSync(join(tmpdir(), 'floe-measure-'));
  const directory = join(dir, 'image');
  mkdirSync(directory);
  makeImage(directory, ['split']);
  const stateDir = join(dir, 'state');
  const opened = await openRuntime(backend, stateDir, { name: IMAGE, directory });
  try {
    const { provider } = opened;
    const image = opened.engine !== null || backend === 'apptainer' ? opened.image : null;
    const spec = runtimeSpecSchema.parse({ image, memory_mb: 256 });
    let count = 0;
    const start = (): Promise<Runtime> =>
      provider.start({ name: `m${count++}`, spec, proxy: null, readOnlyMounts: [] }, never);
    // The first start is not measured, because it prepares files that all sandboxes share.
    const first = await start();
    const { capabilities } = await provider.describe();
    const execMs = capabilities.limits === null ? [] : await times(COMMANDS, () => exec(first));
    const shellMs = capabilities.limits === null ? [] : await shellTimes(first);
    const memoryMb = memoryOf(join(stateDir, `${backend}-${process.pid}`));
    await first.stop();
    const started: Runtime[] = [];
    const startMs = await times(STARTS, async () => void started.push(await start()));
    await Promise.all(started.map((runtime) => runtime.stop()));
    return {
      capabilities,
      start_p50_ms: percentile(startMs, 0.5),
      starts_per_s: capabilities.limits === null ? null : await burst(start),
      exec_p50_ms: percentile(execMs, 0.5),
      shell_p50_ms: percentile(shellMs, 0.5),
      memory_mb: memoryMb,
      ...(capabilities.snapshots.method === 'none' ? NO_SNAPSHOT_TIMES : await snapshots(start)),
    };
  } finally {
    await opened.close();
    await removeTree(dir);
  }
}

async function exec(runtime: Runtime): Promise<void> {
  const { exitCode } = await runtime.exec({ command: ':' }, never);
  if (exitCode !== 0) throw new Error(`a command ended with ${exitCode}`);
}

/** Returns the time in milliseconds of each of {@link COMMANDS} commands in one shell. */
async function shellTimes(runtime: Runtime): Promise<number[]> {
  const tools = await runtime.openTools(never);
  const shell = tools.shell();
  const command = async (): Promise<void> => {
    const { stdout } = await shell.run('echo works', { timeoutMs: SHELL_LIMIT_MS }, never);
    if (stdout !== 'works\n') throw new Error(`a command in a shell printed ${stdout}`);
  };
  try {
    // The first command is not measured, because it starts the shell.
    await command();
    return await times(COMMANDS, command);
  } finally {
    await tools.close();
  }
}

/** Returns the time in milliseconds of each of `count` runs of `work`, one after the other. */
async function times(count: number, work: () => Promise<void>): Promise<number[]> {
  const took: number[] = [];
  for (let index = 0; index < count; index += 1) {
    const startedMs = systemClock.monotonicMs();
    await work();
    took.push(systemClock.monotonicMs() - startedMs);
  }
  return took;
}

/**
 * Measures snapshots of fresh sandboxes with a 100 MB tree, and restores of one sandbox, each after changes that the restore must undo. The
 * first command after each reads the whole tree or the changed file.
 */
async function snapshots(start: () => Promise<Runtime>): Promise<SnapshotTimes> {
  const [takenMs, afterTakenMs, restoredMs, afterRestoredMs]: [number[], number[], number[], number[]] = [
    [],
    [],
    [],
    [],
  ];
  const bytes = TREE_FILES * TREE_FILE_BYTES;
  const makeTree = `head -c ${bytes} /dev/zero | split -a 3 -b ${TREE_FILE_BYTES} - f; echo one >note`;
  const timed = async (into: number[], work: () => Promise<unknown>): Promise<void> => {
    into.push(...(await times(1, async () => void (await work()))));
  };
  const command = async (runtime: Runtime, text: string, output: string): Promise<void> => {
    const { stdout, stderr } = await runtime.exec({ command: text }, never);
    if (stdout !== output) throw new Error(`${text} printed ${stdout} and ${stderr}`);
  };
  for (let index = 0; index < SNAPSHOTS; index += 1) {
    const runtime = await start();
    await command(runtime, makeTree, '');
    let snapshot: RuntimeSnapshot | null = null;
    await timed(takenMs, async () => {
      snapshot = await runtime.snapshot(never);
    });
    await timed(afterTakenMs, () => command(runtime, 'cat note', 'one\n'));
    await command(runtime, 'cat f* | wc -c', `${bytes}\n`);
    for (let round = 0; index === 0 && snapshot !== null && round < RESTORES; round += 1) {
      const taken: RuntimeSnapshot = snapshot;
      await command(runtime, 'echo two >note; rm faab; echo x >new', '');
      await timed(restoredMs, () => runtime.restore(taken, never));
      await timed(afterRestoredMs, () =>
        command(runtime, 'cat note; test -e new || wc -c <faab', `one\n${TREE_FILE_BYTES}\n`),
      );
    }
    await (snapshot as RuntimeSnapshot | null)?.release();
    await runtime.stop();
  }
  return {
    snapshot_p50_ms: percentile(takenMs, 0.5),
    after_snapshot_p50_ms: percentile(afterTakenMs, 0.5),
    restore_p50_ms: percentile(restoredMs, 0.5),
    after_restore_p50_ms: percentile(afterRestoredMs, 0.5),
  };
}

/** Starts {@link BURST} sandboxes and returns how many started per second. */
async function burst(start: () => Promise<Runtime>): Promise<number> {
  const started: Runtime[] = [];
  let left = BURST;
  const work = async (): Promise<void> => {
    while (left-- > 0) started.push(await start());
  };
  const startedMs = systemClock.monotonicMs();
  await Promise.all(Array.from({ length: CONCURRENCY }, work));
  const seconds = (systemClock.monotonicMs() - startedMs) / 1000;
  await Promise.all(started.map((runtime) => runtime.stop()));
  return BURST / seconds;
}

/** Returns the proportional memory in MiB of the processes that have a mount of this directory; `null` when there are none. */
function memoryOf(dir: string): number | null {
  const read = (path: string): string => {
    try {
      return readFileSync(path, 'utf8');
    } catch {
      return '';
    }
  };
  const kibibytes = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && read(`/proc/${name}/mountinfo`).includes(dir))
    .map((name) => Number(/^Pss:\s+(\d+) kB$/m.exec(read(`/proc/${name}/smaps_rollup`))?.[1] ?? 0));
  return kibibytes.length === 0 ? null : (kibibytes.reduce((sum, each) => sum + each, 0) * 1024) / MIB;
}

console.log(JSON.stringify(await measure(runtimeBackendSchema.parse(process.argv[2]))));
