import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type Clock, sleep } from '../../core/clock.ts';
import { asFloeError } from '../../core/errors.ts';
import { isRunning } from './process-table.ts';

/** Names of groups start with it; the owner's id, the process, a number and the sandbox's name follow. */
const PREFIX = 'floe-';

export type CgroupLimits = {
  readonly memoryBytes: number;
  readonly taskCount: number;
  /** null: as many as there are. */
  readonly cpus: number | null;
};

/** The control group of one command. */
export type Cgroup = {
  /** One per hierarchy; a process joins by writing 0 into each `cgroup.procs`. */
  readonly directories: readonly string[];
  /** To be called when every process of it has ended. Never rejects. */
  remove(): Promise<void>;
};

/** A place where groups can be made. */
type Hierarchy = {
  readonly version: 1 | 2;
  readonly controller: 'memory' | 'pids' | 'cpu' | 'unified';
  readonly parent: string;
};

/** What the kernel counts processor time in, for `cpus`. */
const CPU_PERIOD_US = 100_000;
/** A group can be removed once the kernel has done away with its last process, which takes a moment. */
const REMOVE_TRIES = 100;
const REMOVE_POLL_MS = 2;

const V1_CONTROLLERS = ['memory', 'pids', 'cpu'] as const;

let groupCount = 0;

/** Control groups, in whichever hierarchies this process may use. */
export class Cgroups {
  private readonly hierarchies: readonly Hierarchy[];
  private readonly clock: Clock;
  private readonly ownerId: string;

  private constructor(hierarchies: readonly Hierarchy[], clock: Clock, ownerId: string) {
    this.hierarchies = hierarchies;
    this.clock = clock;
    this.ownerId = ownerId;
  }

  /**
   * Finds out by making a group. null: none can be made, so that limits rest on watching the processes alone. Groups carry
   * the owner's id in their names; empty ones that a dead process of the same owner left are removed.
   */
  static async find(clock: Clock, ownerId: string): Promise<Cgroups | null> {
    const usable: Hierarchy[] = [];
    for (const hierarchy of await candidates()) {
      await removeAbandoned(hierarchy.parent, ownerId);
      const trial = new Cgroups([hierarchy], clock, ownerId);
      const limits = { memoryBytes: 2 ** 30, taskCount: 100, cpus: 1 };
      const group = await trial.create('trial', limits).catch(() => null);
      if (group === null) continue;
      await group.remove();
      usable.push(hierarchy);
    }
    return usable.length === 0 ? null : new Cgroups(usable, clock, ownerId);
  }

  /**
   * A group for a command of the sandbox `name`. Without limits it only keeps the command's processes together, in one
   * hierarchy. Rejects with `runtime_failed`, with nothing left, when a limit cannot be set.
   */
  async create(name: string, limits: CgroupLimits | null): Promise<Cgroup> {
    const group = `${PREFIX}${this.ownerId}-${process.pid}-${groupCount++}-${name}`;
    const directories: string[] = [];
    const remove = (): Promise<void> => this.remove(directories);
    try {
      for (const hierarchy of limits === null ? this.hierarchies.slice(0, 1) : this.hierarchies) {
        const directory = join(hierarchy.parent, group);
        await mkdir(directory);
        directories.push(directory);
        if (limits === null) continue;
        for (const [file, value] of settings(hierarchy, limits)) await writeFile(join(directory, file), value);
      }
      return { directories, remove };
    } catch (error) {
      await remove();
      throw asFloeError(error, 'runtime_failed');
    }
  }

  private async remove(directories: readonly string[]): Promise<void> {
    for (const directory of directories) {
      for (let tries = 0; tries < REMOVE_TRIES && !(await removed(directory)); tries++) {
        await sleep(this.clock, REMOVE_POLL_MS);
      }
    }
  }
}

function settings({ version, controller }: Hierarchy, limits: CgroupLimits): [string, string][] {
  const { memoryBytes, taskCount, cpus } = limits;
  const quotaUs = cpus === null ? null : Math.max(1000, Math.round(cpus * CPU_PERIOD_US));
  if (version === 2) {
    return [
      ['memory.max', String(memoryBytes)],
      ['memory.oom.group', '1'],
      ['pids.max', String(taskCount)],
      ...(quotaUs === null ? [] : ([['cpu.max', `${quotaUs} ${CPU_PERIOD_US}`]] satisfies [string, string][])),
    ];
  }
  switch (controller) {
    case 'memory':
      return [['memory.limit_in_bytes', String(memoryBytes)]];
    case 'pids':
      return [['pids.max', String(taskCount)]];
    case 'cpu':
      return quotaUs === null
        ? []
        : [
            ['cpu.cfs_period_us', String(CPU_PERIOD_US)],
            ['cpu.cfs_quota_us', String(quotaUs)],
          ];
    case 'unified':
      return [];
  }
}

/** Where groups could be made, from this process's own place in each hierarchy. */
async function candidates(): Promise<Hierarchy[]> {
  const [mounts, places] = await Promise.all([
    readFile('/proc/self/mounts', 'utf8').catch(() => ''),
    readFile('/proc/self/cgroup', 'utf8').catch(() => ''),
  ]);
  const own = new Map<string, string>();
  for (const line of places.split('\n')) {
    const [, names = '', path = '/'] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
    for (const name of names.split(',')) own.set(name, path);
  }
  const found: Hierarchy[] = [];
  for (const line of mounts.split('\n')) {
    const [, point = '', type, options = ''] = line.split(' ');
    if (type === 'cgroup2') {
      // A group of version 2 with processes in it cannot have limited children, so they go beside it.
      const here = join(point, own.get('') ?? '/').replace(/(.)\/$/, '$1');
      const beside = here === point ? point : dirname(here);
      const controllers = await readFile(join(beside, 'cgroup.subtree_control'), 'utf8').catch(() => '');
      if (/\bmemory\b/.test(controllers) && /\bpids\b/.test(controllers)) {
        found.push({ version: 2, controller: 'unified', parent: beside });
      }
    } else if (type === 'cgroup') {
      const controller = V1_CONTROLLERS.find((name) => options.split(',').includes(name));
      if (controller !== undefined) {
        found.push({ version: 1, controller, parent: join(point, own.get(controller) ?? '/') });
      }
    }
  }
  return found;
}

/** Groups of processes that are gone. */
async function removeAbandoned(parent: string, ownerId: string): Promise<void> {
  for (const name of await readdir(parent).catch(() => [])) {
    const pid = pidOf(name, ownerId);
    if (pid !== null && pid !== process.pid && !isRunning(pid)) await removed(join(parent, name));
  }
}

/** The process that made a group of that owner; null for any other group. */
function pidOf(group: string, ownerId: string): number | null {
  const start = `${PREFIX}${ownerId}-`;
  const pid = group.startsWith(start) ? /^(\d+)-\d+-/.exec(group.slice(start.length))?.[1] : undefined;
  return pid === undefined ? null : Number(pid);
}

export type OwnedGroup = {
  readonly directory: string;
  /** Of the gateway process that made it. */
  readonly pid: number;
  /** The sandbox's name. */
  readonly name: string;
};

/** All groups of an owner, in every hierarchy that this process could make groups in. */
export async function groupsOf(ownerId: string): Promise<OwnedGroup[]> {
  const found: OwnedGroup[] = [];
  for (const { parent } of await candidates()) {
    for (const group of await readdir(parent).catch(() => [])) {
      const pid = pidOf(group, ownerId);
      if (pid === null) continue;
      const name = group.slice(PREFIX.length + ownerId.length + 1).replace(/^\d+-\d+-/, '');
      found.push({ directory: join(parent, group), pid, name });
    }
  }
  return found;
}

/** True once the group is gone; false while it has processes. */
export function removed(directory: string): Promise<boolean> {
  return rmdir(directory).then(
    () => true,
    (error: NodeJS.ErrnoException) => error.code === 'ENOENT',
  );
}
