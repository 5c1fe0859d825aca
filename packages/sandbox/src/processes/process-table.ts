import { readdirSync, readFileSync } from 'node:fs';

/** One process as read from Linux's /proc, with the fields that limits and clean-up need. */
export type ProcessRow = {
  readonly pid: number;
  readonly parentPid: number;
  readonly groupId: number;
  /** State of the process as one letter of /proc; `Z` (zombie) and `X` mean that the process is dead. */
  readonly state: string;
  readonly threadCount: number;
  readonly residentPages: number;
};

/**
 * Reads every process of this pid namespace; returns an empty map on a system without /proc. Processes that end during the read are left
 * out.
 */
export function readProcessTable(): Map<number, ProcessRow> {
  const table = new Map<number, ProcessRow>();
  for (const name of listProc()) {
    const row = readProcess(Number(name));
    if (row !== null) table.set(row.pid, row);
  }
  return table;
}

/** Reads one process of /proc; returns `null` when no process has this id. */
export function readProcess(pid: number): ProcessRow | null {
  const stat = readProcFile(`/proc/${pid}/stat`);
  if (stat === null) return null;
  // The program's name is in parentheses and may itself contain parentheses and spaces, so the fields are read after the last parenthesis.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return {
    pid,
    state: fields[0] ?? 'X',
    parentPid: Number(fields[1]),
    groupId: Number(fields[2]),
    threadCount: Number(fields[17]),
    residentPages: Number(fields[21]),
  };
}

export function isAlive(row: ProcessRow | null | undefined): boolean {
  return row !== null && row !== undefined && row.state !== 'Z' && row.state !== 'X';
}

/** Returns the process `root` and its descendants; an empty array when no process has that id. */
export function processTree(
  root: number,
  table: ReadonlyMap<number, ProcessRow>,
  children: ChildrenByPid,
): ProcessRow[] {
  const found: ProcessRow[] = [];
  const first = table.get(root);
  const queue = first === undefined ? [] : [first];
  for (let row = queue.pop(); row !== undefined; row = queue.pop()) {
    found.push(row);
    queue.push(...(children.get(row.pid) ?? []));
  }
  return found;
}

export type ChildrenByPid = ReadonlyMap<number, readonly ProcessRow[]>;

export function childrenByParent(table: ReadonlyMap<number, ProcessRow>): Map<number, ProcessRow[]> {
  const children = new Map<number, ProcessRow[]>();
  for (const row of table.values()) {
    const siblings = children.get(row.parentPid);
    if (siblings === undefined) children.set(row.parentPid, [row]);
    else siblings.push(row);
  }
  return children;
}

/** Whether a process with this id exists, including a process of another user. */
export function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** Returns the process's proportional set size in bytes (a page that n processes share counts as 1/n); `null` when it cannot be read. */
export function proportionalBytes(pid: number): number | null {
  const rollup = readProcFile(`/proc/${pid}/smaps_rollup`);
  const match = rollup?.match(/^Pss:\s+(\d+) kB$/m);
  return match === null || match === undefined ? null : Number(match[1]) * 1024;
}

/** Returns the ids of the processes that have the entry `NAME=value` in their environment, as far as this user may read it. */
export function processesWithEnvironment(entry: string): number[] {
  const found: number[] = [];
  for (const name of listProc()) {
    const environment = readProcFile(`/proc/${name}/environ`);
    if (environment?.split('\0').includes(entry)) found.push(Number(name));
  }
  return found;
}

/** How often a control group has enforced its limits: processes killed for their memory use, and refused forks. */
export type CgroupCounts = { readonly memory: number; readonly processes: number };

const NO_COUNTS: CgroupCounts = { memory: 0, processes: 0 };

/** Returns the counts of a control group. `directories` are the group's directories in each cgroup hierarchy. */
export function cgroupCounts(directories: readonly string[]): CgroupCounts {
  let { memory, processes } = NO_COUNTS;
  for (const directory of directories) {
    const events = readProcFile(`${directory}/memory.events`) ?? readProcFile(`${directory}/memory.oom_control`);
    memory += counterOf(events, 'oom_kill');
    processes += counterOf(readProcFile(`${directory}/pids.events`), 'max');
  }
  return { memory, processes };
}

/**
 * Returns the limit that a control group has enforced since it had the counts `before`; `null` when it has enforced none. `directories` are
 * the group's directories in each cgroup hierarchy.
 */
export function cgroupHit(
  directories: readonly string[],
  before: CgroupCounts = NO_COUNTS,
): 'memory' | 'processes' | null {
  const { memory, processes } = cgroupCounts(directories);
  if (memory > before.memory) return 'memory';
  return processes > before.processes ? 'processes' : null;
}

/** Returns the ids of the processes in the control group with this directory; an empty array when the group does not exist. */
export function processesOfGroup(directory: string): number[] {
  return (readProcFile(`${directory}/cgroup.procs`) ?? '').split('\n').filter(Boolean).map(Number);
}

function counterOf(counters: string | null, name: string): number {
  return Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(counters ?? '')?.[1] ?? 0);
}

function listProc(): string[] {
  try {
    return readdirSync('/proc').filter((name) => /^\d+$/.test(name));
  } catch {
    return [];
  }
}

function readProcFile(path: string): string | null {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    // The process has ended, or this user may not read the file. The caller ignores such a process.
    return null;
  }
}
