import { mkdir, readdir, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { asFloeError, type Clock, sleep } from '@floe-rl/core';
import { type CgroupLimits, type Controller, findHierarchies, type Hierarchy, limitFiles } from './cgroup-hierarchy.ts';
import { isRunning } from './process-table.ts';

/**
 * Prefix of the name of every control group that floe creates. The owner's id, the gateway's process id, a counter and the sandbox's name
 * follow it.
 */
const PREFIX = 'floe-';

/** The Linux control group of one command. */
export type Cgroup = {
  /**
   * Directory of the group in each cgroup hierarchy. A process joins the group by writing 0 to `cgroup.procs` in each of these directories.
   */
  readonly directories: readonly string[];
  /** Removes the group. The caller must wait until all processes of the group have ended. Never rejects. */
  remove(): Promise<void>;
};

/**
 * Maximum number of attempts to remove a control group. An attempt fails until the kernel has released the group's last process, which
 * takes some milliseconds.
 */
const REMOVE_TRIES = 100;
const REMOVE_POLL_MS = 2;

let groupCount = 0;

/** Creates control groups in the cgroup hierarchies that this process may use. */
export class Cgroups {
  /** Controllers whose limits hold for the groups that {@link create} makes. */
  readonly controllers: ReadonlySet<Controller>;
  private readonly hierarchies: readonly Hierarchy[];
  private readonly clock: Clock;
  private readonly ownerId: string;

  private constructor(hierarchies: readonly Hierarchy[], clock: Clock, ownerId: string) {
    this.hierarchies = hierarchies;
    this.controllers = new Set(hierarchies.flatMap(({ controllers }) => [...controllers]));
    this.clock = clock;
    this.ownerId = ownerId;
  }

  /**
   * Finds the cgroup hierarchies that this process can use, by creating a test group in each. Resolves with `null` when it can use none;
   * `ProcessWatch`, which polls the process table, then enforces the limits instead. Also removes empty groups that ended gateway processes
   * of the same owner left. `procDir` is the directory that describes this process; default: `/proc/self`.
   */
  static async find(clock: Clock, ownerId: string, procDir?: string): Promise<Cgroups | null> {
    const usable: Hierarchy[] = [];
    for (const hierarchy of await findHierarchies(procDir)) {
      await removeAbandoned(hierarchy.parent, ownerId);
      if (hierarchy.version === 2 && usable.some(({ version }) => version === 2)) continue;
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
   * Creates a control group for a command of the sandbox `name`. When `limits` is `null`, the group is created in one hierarchy only and
   * serves to identify the command's processes. When a limit cannot be set, removes the group and rejects with `runtime_failed`.
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
        for (const [file, value] of limitFiles(hierarchy, limits)) await writeFile(join(directory, file), value);
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

/** Removes the control groups in `parent` that gateway processes of this owner made, if these processes no longer exist. */
async function removeAbandoned(parent: string, ownerId: string): Promise<void> {
  for (const name of await readdir(parent).catch(() => [])) {
    const pid = pidOf(name, ownerId);
    if (pid !== null && pid !== process.pid && !isRunning(pid)) await removeGroup(join(parent, name));
  }
}

/** Returns the id of the process that created the control group `group`; `null` for a group of another owner. */
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

/** Returns all control groups of an owner, in every hierarchy in which this process might be allowed to create groups. */
export async function groupsOf(ownerId: string): Promise<OwnedGroup[]> {
  const found: OwnedGroup[] = [];
  for (const { parent } of await findHierarchies()) {
    for (const group of await readdir(parent).catch(() => [])) {
      const pid = pidOf(group, ownerId);
      if (pid === null) continue;
      const name = group.slice(PREFIX.length + ownerId.length + 1).replace(/^\d+-\d+-/, '');
      found.push({ directory: join(parent, group), pid, name });
    }
  }
  return found;
}

/** Removes a control group. Resolves with true when the group no longer exists, and with false while it contains processes. */
export function removeGroup(directory: string): Promise<boolean> {
  return rmdir(directory).then(
    () => true,
    (error: NodeJS.ErrnoException) => error.code === 'ENOENT',
  );
}
