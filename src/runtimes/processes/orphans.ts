import { readdir, readFile } from 'node:fs/promises';
import { type Clock, sleep } from '../../core/clock.ts';
import { groupsOf, type OwnedGroup, removed } from './cgroup.ts';
import { type Label, readLabel } from './owner.ts';
import {
  childrenByParent,
  isAlive,
  processesOfGroup,
  processTree,
  readProcess,
  readProcessTable,
} from './process-table.ts';

/** Environments read at a time: enough to keep the disk threads busy, few enough to leave them to others. */
const READ_AT_ONCE = 16;
/** Between two looks at what has been killed. */
const POLL_MS = 5;
/** What SIGKILL has not ended by then waits for the kernel, for a dead network file system for instance. */
const GIVE_UP_MS = 10_000;

export type LabelledProcess = { readonly pid: number; readonly label: Label };

export type Ended = {
  readonly processes: number;
  readonly cgroups: number;
  /** Processes that would not go. */
  readonly survivors: readonly number[];
};

/** Every live process that carries a label of this owner, as far as this user may read its environment. */
export async function labelledProcesses(ownerId: string): Promise<LabelledProcess[]> {
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name)).values();
  const found: LabelledProcess[] = [];
  const work = async (): Promise<void> => {
    for (const pid of pids) {
      // Gone, or not ours to read.
      const environment = await readFile(`/proc/${pid}/environ`, 'latin1').catch(() => '');
      const label = readLabel(environment, ownerId);
      if (label !== null) found.push({ pid: Number(pid), label });
    }
  };
  await Promise.all(Array.from({ length: READ_AT_ONCE }, work));
  return found;
}

/**
 * Ends all processes that an owner's label or control group names and `which` accepts, with everything that descends from
 * them, and removes those groups. Looks again until there is nothing, since what is killed may be starting processes.
 */
export async function endOwned(
  ownerId: string,
  which: (found: { readonly name: string; readonly instance: string | null; readonly pid: number | null }) => boolean,
  clock: Clock,
): Promise<Ended> {
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
    for (const { directory } of groups) if (await removed(directory)) cgroups.add(directory);
    const late = clock.monotonicMs() >= giveUpMs;
    if (alive.length === 0 && (late || groups.every(({ directory }) => cgroups.has(directory)))) {
      return { processes: killed.size, cgroups: cgroups.size, survivors: [] };
    }
    if (late) return { processes: killed.size - alive.length, cgroups: cgroups.size, survivors: alive };
    await sleep(clock, POLL_MS);
  }
}

/** Never this process itself or one that it descends from: it may have been started from within a sandbox. */
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
    // Gone meanwhile, which is what was wanted.
  }
}
