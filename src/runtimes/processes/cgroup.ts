import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type Clock, sleep } from '../../core/clock.ts';
import { asFloeError } from '../../core/errors.ts';
import { isRunning } from './process-table.ts';

/** Prefix of a group's name. It is followed by the owner's id, the process id, a number and the sandbox's name. */
const PREFIX = 'floe-';

export type CgroupLimits = {
  readonly memoryBytes: number;
  readonly taskCount: number;
  /** Number of processors, which may be a fraction; `null` when there is no limit. */
  readonly cpus: number | null;
};

/** The Linux control group of one command. */
export type Cgroup = {
  /** Directory of the group in each hierarchy. A process joins the group by writing 0 to `cgroup.procs` in each of them. */
  readonly directories: readonly string[];
  /** Removes the group. To be called when all of its processes have ended. Never rejects. */
  remove(): Promise<void>;
};

/** A mounted cgroup hierarchy, and the directory in it in which this process may create groups. */
type Hierarchy = {
  readonly version: 1 | 2;
  readonly controller: 'memory' | 'pids' | 'cpu' | 'unified';
  readonly parent: string;
};

/** Period over which the kernel enforces the processor limit, in microseconds. */
const CPU_PERIOD_US = 100_000;
/**
 * Maximum number of attempts to remove a group. They fail until the kernel has released the group's last process, which takes some
 * milliseconds.
 */
const REMOVE_TRIES = 100;
const REMOVE_POLL_MS = 2;

const V1_CONTROLLERS = ['memory', 'pids', 'cpu'] as const;

let groupCount = 0;

/** Creates control groups in the hierarchies that this process may use. */
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
   * Finds the usable hierarchies by creating a test group in each. Resolves with `null` when there are none; limits are then enforced only
   * by the process watch. Also removes empty groups that dead processes of the same owner left.
   */
  static async find(clock: Clock, ownerId: string): Promise<Cgroups | null> {
    const usable: Hierarchy[] = [];
    for (const hierarchy of await candidates()) {
      await removeAbandoned(hierarchy.parent, ownerId);
      const candidate = new Cgroups([hierarchy], clock, ownerId);
      const limits = { memoryBytes: 2 ** 30, taskCount: 100, cpus: 1 };
      const group = await candidate.create('trial', limits).catch(() => null);
      if (group === null) continue;
      await group.remove();
      usable.push(hierarchy);
    }
    return usable.length === 0 ? null : new Cgroups(usable, clock, ownerId);
  }

  /**
   * Creates a group for a command of the sandbox `name`. When `limits` is `null`, the group is created in one hierarchy only and serves to
   * identify the command's processes. Rejects with `runtime_failed` when a limit cannot be set; the group is then removed.
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
      for (let tries = 0; tries < REMOVE_TRIES && !(await removeGroup(directory)); tries++) {
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

/** Returns the directories in which this process might create groups, derived from its own group in each hierarchy. */
async function candidates(): Promise<Hierarchy[]> {
  const [mounts, memberships] = await Promise.all([
    readFile('/proc/self/mounts', 'utf8').catch(() => ''),
    readFile('/proc/self/cgroup', 'utf8').catch(() => ''),
  ]);
  const own = new Map<string, string>();
  for (const line of memberships.split('\n')) {
    const [, names = '', path = '/'] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
    for (const name of names.split(',')) own.set(name, path);
  }
  const found: Hierarchy[] = [];
  for (const line of mounts.split('\n')) {
    const [, point = '', type, options = ''] = line.split(' ');
    if (type === 'cgroup2') {
      // In version 2, a group that contains processes cannot have children with limits, so new groups are siblings of this process's
      // group.
      const here = join(point, own.get('') ?? '/').replace(/(.)\/$/, '$1');
      const parent = here === point ? point : dirname(here);
      const controllers = await readFile(join(parent, 'cgroup.subtree_control'), 'utf8').catch(() => '');
      if (/\bmemory\b/.test(controllers) && /\bpids\b/.test(controllers)) {
        found.push({ version: 2, controller: 'unified', parent });
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

/** Removes the groups that dead processes of an owner left. */
async function removeAbandoned(parent: string, ownerId: string): Promise<void> {
  for (const name of await readdir(parent).catch(() => [])) {
    const pid = pidOf(name, ownerId);
    if (pid !== null && pid !== process.pid && !isRunning(pid)) await removeGroup(join(parent, name));
  }
}

/** Returns the id of the process that created a group of this owner; `null` for a group of another owner. */
function pidOf(group: string, ownerId: string): number | null {
  const start = `${PREFIX}${ownerId}-`;
  const pid = group.startsWith(start) ? /^(\d+)-\d+-/.exec(group.slice(start.length))?.[1] : undefined;
  return pid === undefined ? null : Number(pid);
}

export type OwnedGroup = {
  readonly directory: string;
  /** Id of the gateway process that created the group. */
  readonly pid: number;
  /** Name of the sandbox that the group belongs to. */
  readonly name: string;
};

/** Returns all groups of an owner, in every hierarchy in which this process might create groups. */
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

/** Removes a group. Resolves with true when the group no longer exists, with false while it contains processes. */
export function removeGroup(directory: string): Promise<boolean> {
  return rmdir(directory).then(
    () => true,
    (error: NodeJS.ErrnoException) => error.code === 'ENOENT',
  );
}
