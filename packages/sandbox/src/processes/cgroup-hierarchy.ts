import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

export type CgroupLimits = {
  readonly memoryBytes: number;
  readonly taskCount: number;
  /** CPU limit as a number of processors, which may be a fraction; `null` when there is no limit. */
  readonly cpus: number | null;
};

/** Part of the kernel that enforces one kind of limit on a control group. */
export type Controller = 'memory' | 'pids' | 'cpu';

/** A mounted cgroup hierarchy, and the directory in it in which this process may create groups. */
export type Hierarchy = {
  readonly version: 1 | 2;
  /** The controllers whose limits the groups in {@link parent} can have. A hierarchy of version 1 has one. */
  readonly controllers: ReadonlySet<Controller>;
  readonly parent: string;
};

const CONTROLLERS = ['memory', 'pids', 'cpu'] as const;

/** Period in microseconds over which the kernel enforces the CPU limit. */
const CPU_PERIOD_US = 100_000;
/**
 * Weight of a command's group in cgroup version 2 when the processors do not suffice for all groups. The weight is the same for each command,
 * however many processes it starts. It is a fifth of the kernel's default, which the gateway's group has.
 *
 * In version 1 each command has the kernel's default. Groups there compete with single processes outside of groups, and a lower share would
 * starve them.
 */
const CPU_WEIGHT = 20;

/** Returns the names and contents of the files that set the limits of a group in this hierarchy. */
export function limitFiles({ version, controllers }: Hierarchy, limits: CgroupLimits): [string, string][] {
  const files = version === 2 ? FILES_V2 : FILES_V1;
  return CONTROLLERS.filter((name) => controllers.has(name)).flatMap((name) => files[name](limits));
}

type LimitFiles = Readonly<Record<Controller, (limits: CgroupLimits) => [string, string][]>>;

const FILES_V2: LimitFiles = {
  memory: ({ memoryBytes }) => [
    ['memory.max', String(memoryBytes)],
    ['memory.oom.group', '1'],
  ],
  pids: ({ taskCount }) => [['pids.max', String(taskCount)]],
  cpu: ({ cpus }) => [
    ['cpu.weight', String(CPU_WEIGHT)],
    ...(cpus === null ? [] : ([['cpu.max', `${quotaUs(cpus)} ${CPU_PERIOD_US}`]] satisfies [string, string][])),
  ],
};

const FILES_V1: LimitFiles = {
  memory: ({ memoryBytes }) => [['memory.limit_in_bytes', String(memoryBytes)]],
  pids: ({ taskCount }) => [['pids.max', String(taskCount)]],
  cpu: ({ cpus }) =>
    cpus === null
      ? []
      : [
          ['cpu.cfs_period_us', String(CPU_PERIOD_US)],
          ['cpu.cfs_quota_us', String(quotaUs(cpus))],
        ],
};

function quotaUs(cpus: number): number {
  return Math.max(1000, Math.round(cpus * CPU_PERIOD_US));
}

/**
 * Returns the directories of the cgroup hierarchies in which this process might be allowed to create groups. A hierarchy of version 2 may have
 * two such directories. Only one of the two should be used, and the one with more controllers comes first. `procDir` is the directory that
 * describes this process.
 */
export async function findHierarchies(procDir = '/proc/self'): Promise<Hierarchy[]> {
  const [mounts, memberships] = await Promise.all([
    readFile(join(procDir, 'mounts'), 'utf8').catch(() => ''),
    readFile(join(procDir, 'cgroup'), 'utf8').catch(() => ''),
  ]);
  const own = new Map<string, string>();
  for (const line of memberships.split('\n')) {
    const [, names, path] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
    if (names === undefined || path === undefined) continue;
    for (const name of names.split(',')) own.set(name, path);
  }
  const found: Hierarchy[] = [];
  for (const line of mounts.split('\n')) {
    const [, point = '', type, options = ''] = line.split(' ');
    if (type === 'cgroup2') {
      found.push(...(await unifiedHierarchies(point, own.get('') ?? '/')));
    } else if (type === 'cgroup') {
      const controller = CONTROLLERS.find((name) => options.split(',').includes(name));
      if (controller !== undefined) {
        const parent = join(point, own.get(controller) ?? '/');
        found.push({ version: 1, controllers: new Set([controller]), parent });
      }
    }
  }
  return found;
}

/**
 * Returns the directories of a hierarchy of version 2, mounted at `point`, in which a process of the group `ownPath` might be allowed to
 * create groups with limits. A group that contains processes cannot have children with limits, so new groups are siblings of the process's
 * own group. This works in a subtree that is delegated to the process. A process of root can also create groups in the root of the
 * hierarchy, which may have more controllers.
 */
async function unifiedHierarchies(point: string, ownPath: string): Promise<Hierarchy[]> {
  const here = join(point, ownPath).replace(/(.)\/$/, '$1');
  const parents = here === point ? [point] : [...new Set([dirname(here), point])];
  const found = await Promise.all(
    parents.map(async (parent): Promise<Hierarchy> => {
      const enabled = await readFile(join(parent, 'cgroup.subtree_control'), 'utf8').catch(() => '');
      const controllers = new Set(CONTROLLERS.filter((name) => enabled.trim().split(' ').includes(name)));
      return { version: 2, controllers, parent };
    }),
  );
  return found
    .filter(({ controllers }) => controllers.size > 0)
    .sort((a, b) => b.controllers.size - a.controllers.size);
}
