import { readFileSync } from 'node:fs';
import { totalmem } from 'node:os';
import { dirname, join } from 'node:path';
import { MIB } from '@floe-rl/core';

/**
 * Returns the memory in MiB that this process and its children may use: the memory of the machine, or the limit of a control group if it is
 * lower. In cgroup version 2, the limits of all parent groups count as well, because a service's limit may be set on a parent. `procDir` is
 * the directory that describes this process, and `groupsDir` is the mount point of cgroup version 2.
 */
export function machineMemoryMb(procDir = '/proc/self', groupsDir = '/sys/fs/cgroup'): number {
  const own = process.constrainedMemory();
  const limits = [totalmem(), ...(own > 0 ? [own] : []), ...groupLimits(procDir, groupsDir)];
  return Math.floor(Math.min(...limits) / MIB);
}

function groupLimits(procDir: string, groupsDir: string): number[] {
  const path = /^0::(.*)$/m.exec(fileText(join(procDir, 'cgroup')))?.[1];
  if (path === undefined) return [];
  const limits: number[] = [];
  for (let group = join('/', path); ; group = dirname(group)) {
    const limit = Number.parseInt(fileText(join(groupsDir, group, 'memory.max')), 10);
    if (!Number.isNaN(limit)) limits.push(limit);
    if (group === '/') return limits;
  }
}

/** Returns the content of a file; an empty text when the file cannot be read. */
function fileText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
