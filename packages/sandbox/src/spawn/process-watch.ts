import type { Clock } from '@floe-rl/core';
import {
  type CgroupCounts,
  cgroupCounts,
  cgroupHit,
  childrenByParent,
  type ProcessRow,
  processTree,
  proportionalBytes,
  readProcessTable,
} from '../processes/process-table.ts';
import type { SpawnLimits } from './spawner.ts';

/**
 * Interval in milliseconds at which the limits of all watched processes are checked. Reading a process table of 500 processes takes about 5
 * ms.
 */
export const CHECK_INTERVAL_MS = 250;
/**
 * Page size of x86-64 and most arm64 kernels, in bytes. On a kernel with larger pages, memory use estimated from resident pages is too low,
 * so an exceeded limit is detected late.
 */
const PAGE_BYTES = 4096;

export type LimitHit = 'memory' | 'processes';

type Watched = {
  readonly limits: SpawnLimits;
  /** Counts of the shared control group when the process started. */
  readonly before: CgroupCounts;
  readonly onHit: (hit: LimitHit) => void;
};

type FindOrphans = (table: ReadonlyMap<number, ProcessRow>) => readonly ProcessRow[];

/** Checks the limits of all watched process trees four times a second. The checks run only while at least one process is watched. */
export class ProcessWatch {
  private readonly clock: Clock;
  private readonly orphans: FindOrphans;
  private readonly watched = new Map<number, Watched>();
  private cancelCheck: (() => void) | null = null;

  /** `orphans` finds the processes that count towards the limits of all watched processes, because they have lost their parents. */
  constructor(clock: Clock, orphans: FindOrphans = () => []) {
    this.clock = clock;
    this.orphans = orphans;
  }

  /** Watches the process `pid`. Calls `onHit` once when the process and its descendants exceed a limit, and then stops watching them. */
  add(pid: number, limits: SpawnLimits, onHit: (hit: LimitHit) => void): void {
    this.watched.set(pid, { limits, before: cgroupCounts(limits.sharedCgroups ?? []), onHit });
    this.cancelCheck ??= this.clock.schedule(CHECK_INTERVAL_MS, () => this.check());
  }

  remove(pid: number): void {
    this.watched.delete(pid);
    if (this.watched.size > 0) return;
    this.cancelCheck?.();
    this.cancelCheck = null;
  }

  /** Returns the limit of a control group that the watched process has hit; `null` when it has hit none. */
  cgroupHit(pid: number): LimitHit | null {
    const watched = this.watched.get(pid);
    return watched === undefined ? null : cgroupHitOf(watched);
  }

  private check(): void {
    this.cancelCheck = this.clock.schedule(CHECK_INTERVAL_MS, () => this.check());
    const table = readProcessTable();
    const children = childrenByParent(table);
    const orphans = this.orphans(table).flatMap((row) => processTree(row.pid, table, children));
    for (const [pid, watched] of [...this.watched]) {
      const { limits, onHit } = watched;
      const hit = cgroupHitOf(watched) ?? exceeded([...processTree(pid, table, children), ...orphans], limits);
      if (hit === null) continue;
      this.remove(pid);
      onHit(hit);
    }
  }
}

function cgroupHitOf({ limits, before }: Watched): LimitHit | null {
  return cgroupHit(limits.cgroups ?? []) ?? cgroupHit(limits.sharedCgroups ?? [], before);
}

function exceeded(tree: readonly ProcessRow[], limits: SpawnLimits): LimitHit | null {
  let tasks = 0;
  let residentBytes = 0;
  for (const row of tree) {
    tasks += row.threadCount;
    residentBytes += row.residentPages * PAGE_BYTES;
  }
  if (tasks >= limits.taskCount) return 'processes';
  // The sum of resident pages counts a shared page once for each process, so it is an upper bound. When it is below the limit, the exact
  // sum, which is slower to compute, is not needed.
  if (residentBytes <= limits.memoryBytes) return null;
  let exactBytes = 0;
  for (const row of tree) exactBytes += proportionalBytes(row.pid) ?? row.residentPages * PAGE_BYTES;
  return exactBytes > limits.memoryBytes ? 'memory' : null;
}
