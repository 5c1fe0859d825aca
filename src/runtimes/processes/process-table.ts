import { readdirSync, readFileSync } from 'node:fs';

/** One row of Linux's /proc, as far as limits and clean-up need it. */
export type ProcessRow = {
  readonly pid: number;
  readonly parentPid: number;
  readonly groupId: number;
  /** One letter; `Z` and `X` are dead already. */
  readonly state: string;
  readonly threadCount: number;
  readonly residentPages: number;
};

/** Every process of this machine (those of this pid namespace); empty where there is no /proc. Processes that end meanwhile are left out. */
export function readProcessTable(): Map<number, ProcessRow> {
  const table = new Map<number, ProcessRow>();
  for (const name of listProc()) {
    const row = readProcess(Number(name));
    if (row !== null) table.set(row.pid, row);
  }
  return table;
}

/** One process, or null when there is none of that pid. */
export function readProcess(pid: number): ProcessRow | null {
  const stat = readProcFile(`/proc/${pid}/stat`);
  if (stat === null) return null;
  // The second field is the program's name in brackets and may itself hold brackets and blanks.
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

/** `root` and everything that descends from it; empty when there is no such process. */
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

/** Whether a process of that id is there, also one of another user. */
export function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** Proportional set size in bytes; null when it cannot be read. */
export function proportionalBytes(pid: number): number | null {
  const rollup = readProcFile(`/proc/${pid}/smaps_rollup`);
  const match = rollup?.match(/^Pss:\s+(\d+) kB$/m);
  return match === null || match === undefined ? null : Number(match[1]) * 1024;
}

/** Processes whose environment holds the entry, as far as this user may read it. */
export function processesWithEnvironment(entry: string): number[] {
  const found: number[] = [];
  for (const name of listProc()) {
    const environment = readProcFile(`/proc/${name}/environ`);
    if (environment?.split('\0').includes(entry)) found.push(Number(name));
  }
  return found;
}

/**
 * Which limit a control group has enforced so far: by ending a process for its memory, or by refusing one. Takes the
 * group's directory in each hierarchy.
 */
export function cgroupHit(directories: readonly string[]): 'memory' | 'processes' | null {
  for (const directory of directories) {
    const memory = readProcFile(`${directory}/memory.events`) ?? readProcFile(`${directory}/memory.oom_control`);
    if (counted(memory, 'oom_kill')) return 'memory';
    if (counted(readProcFile(`${directory}/pids.events`), 'max')) return 'processes';
  }
  return null;
}

/** Processes of a control group, by its directory; empty once it is gone. */
export function processesOfGroup(directory: string): number[] {
  return (readProcFile(`${directory}/cgroup.procs`) ?? '').split('\n').filter(Boolean).map(Number);
}

function counted(counters: string | null, name: string): boolean {
  return Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(counters ?? '')?.[1] ?? 0) > 0;
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
    // Gone, or not ours to read: both mean that there is nothing to count here.
    return null;
  }
}
