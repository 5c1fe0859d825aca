import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type Clock, sleep } from '../core/clock.ts';
import { asFloeError } from '../core/errors.ts';
import { isRunning } from './process-table.ts';

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

  private constructor(hierarchies: readonly Hierarchy[], clock: Clock) {
    this.hierarchies = hierarchies;
    this.clock = clock;
  }

  /** Finds out by making a group. null: none can be made, so that limits rest on watching the processes alone. */
  static async find(clock: Clock): Promise<Cgroups | null> {
    const usable: Hierarchy[] = [];
    for (const hierarchy of await candidates()) {
      await removeAbandoned(hierarchy.parent);
      const trial = new Cgroups([hierarchy], clock);
      const group = await trial.create({ memoryBytes: 2 ** 30, taskCount: 100, cpus: 1 }).catch(() => null);
      if (group === null) continue;
      await group.remove();
      usable.push(hierarchy);
    }
    return usable.length === 0 ? null : new Cgroups(usable, clock);
  }

  /** Rejects with `runtime_failed`, with nothing left, when a limit cannot be set. */
  async create(limits: CgroupLimits): Promise<Cgroup> {
    const name = `floe-${process.pid}-${groupCount++}`;
    const directories: string[] = [];
    const remove = (): Promise<void> => this.remove(directories);
    try {
      for (const hierarchy of this.hierarchies) {
        const directory = join(hierarchy.parent, name);
        await mkdir(directory);
        directories.push(directory);
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
async function removeAbandoned(parent: string): Promise<void> {
  for (const name of await readdir(parent).catch(() => [])) {
    const pid = Number(/^floe-(\d+)-\d+$/.exec(name)?.[1]);
    if (!Number.isNaN(pid) && pid !== process.pid && !isRunning(pid)) await removed(join(parent, name));
  }
}

function removed(directory: string): Promise<boolean> {
  return rmdir(directory).then(
    () => true,
    (error: NodeJS.ErrnoException) => error.code === 'ENOENT',
  );
}
