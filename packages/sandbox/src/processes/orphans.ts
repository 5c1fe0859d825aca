import { readdir, readFile } from 'node:fs/promises';
import { type Clock, sleep } from '@floe-rl/core';
import { groupsOf, type OwnedGroup, removeGroup } from './cgroup.ts';
import { type Label, readLabel } from './owner.ts';
import {
  childrenByParent,
  isAlive,
  processesOfGroup,
  processTree,
  readProcess,
  readProcessTable,
} from './process-table.ts';

/**
 * Number of files of /proc that are read concurrently. It is limited so that other file operations of the process do not wait in a long
 * queue.
 */
const CONCURRENT_READS = 16;
/** Interval in milliseconds of the checks whether killed processes have ended. */
const EXIT_POLL_MS = 5;
/**
 * Maximum time in milliseconds to wait for processes to end after SIGKILL. A process that takes longer hangs in the kernel, for example on
 * an unreachable network file system.
 */
const GIVE_UP_MS = 10_000;

export type LabelledProcess = { readonly pid: number; readonly label: Label };

/** Numbers of processes and control groups that {@link endOwned} has removed. */
export type EndedCounts = {
  readonly processes: number;
  readonly cgroups: number;
  /** Ids of the processes that did not end after SIGKILL. */
  readonly survivors: readonly number[];
};

/**
 * Returns every live process that has a label of this owner in its environment. Processes with an environment that this user may not read
 * are left out.
 */
export async function labelledProcesses(ownerId: string): Promise<LabelledProcess[]> {
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name)).values();
  const found: LabelledProcess[] = [];
  const work = async (): Promise<void> => {
    for (const pid of pids) {
      // The read fails when the process has ended or this user may not read its environment; the process then counts as unlabelled.
      const environment = await readFile(`/proc/${pid}/environ`, 'latin1').catch(() => '');
      const label = readLabel(environment, ownerId);
      if (label !== null) found.push({ pid: Number(pid), label });
    }
  };
  await Promise.all(Array.from({ length: CONCURRENT_READS }, work));
  return found;
}

/**
 * Kills all processes that have a label of this owner or are in one of its control groups, if `which` accepts them, and all their
 * descendants. Removes these control groups. Repeats until no such process is alive, since a process may fork before it is killed; gives up
 * after {@link GIVE_UP_MS}.
 */
export async function endOwned(
  ownerId: string,
  which: (found: { readonly name: string; readonly instance: string | null; readonly pid: number | null }) => boolean,
  clock: Clock,
): Promise<EndedCounts> {
  const killed = new Set<number>();
  const cgroups = new Set<string>();
  const giveUpMs = clock.monotonicMs() + GIVE_UP_MS;
  for (;;) {
    const groups = (await groupsOf(ownerId)).filter(({ name, pid }) => which({ name, instance: null, pid }));
    const labels = (await labelledProcesses(ownerId)).filter(({ label }) => which({ ...label, pid: null }));
    const alive = withDescendants(
      labels.map(({ pid }) => pid),
      groups,
    );
    for (const pid of alive) {
      killed.add(pid);
      kill(pid);
    }
    for (const { directory } of groups) if (await removeGroup(directory)) cgroups.add(directory);
    const late = clock.monotonicMs() >= giveUpMs;
    if (alive.length === 0 && (late || groups.every(({ directory }) => cgroups.has(directory)))) {
      return { processes: killed.size, cgroups: cgroups.size, survivors: [] };
    }
    if (late) return { processes: killed.size - alive.length, cgroups: cgroups.size, survivors: alive };
    await sleep(clock, EXIT_POLL_MS);
  }
}

/**
 * Returns the live processes to kill: the labelled processes, the members of the groups, and the descendants of all of these. Never
 * includes this process or its ancestors, since the gateway may itself run in a sandbox.
 */
function withDescendants(labelled: readonly number[], groups: readonly OwnedGroup[]): number[] {
  const roots = [...labelled, ...groups.flatMap(({ directory }) => processesOfGroup(directory))];
  if (roots.length === 0) return [];
  const table = readProcessTable();
  const spared = new Set<number>();
  for (let row = table.get(process.pid); row !== undefined; row = table.get(row.parentPid)) spared.add(row.pid);
  const children = childrenByParent(table);
  const found = new Set<number>();
  for (const root of roots) {
    if (spared.has(root)) continue;
    for (const row of processTree(root, table, children)) if (!spared.has(row.pid)) found.add(row.pid);
  }
  return [...found].filter((pid) => isAlive(readProcess(pid)));
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // The signal could not be sent because the process has already ended.
  }
}
