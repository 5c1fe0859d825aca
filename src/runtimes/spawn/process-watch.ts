import type { Clock } from '../../core/clock.ts';
import {
  cgroupHit,
  childrenByParent,
  type ProcessRow,
  processTree,
  proportionalBytes,
  readProcessTable,
} from '../processes/process-table.ts';
import type { SpawnLimits } from './spawner.ts';

/** Interval of the checks. Reading the table of 500 processes takes about 5 ms. */
const CHECK_INTERVAL_MS = 250;
/**
 * Page size of x86-64 and most arm64 kernels, in bytes. On a kernel with larger pages, the estimate from resident pages is too low; the
 * exact sum is still right.
 */
const PAGE_BYTES = 4096;

export type LimitHit = 'memory' | 'processes';

type Watched = { readonly limits: SpawnLimits; readonly onHit: (hit: LimitHit) => void };

/** Checks the limits of all watched process trees four times a second, as long as any tree is watched. */
export class ProcessWatch {
  private readonly clock: Clock;
  private readonly watched = new Map<number, Watched>();
  private cancelCheck: (() => void) | null = null;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** Watches a process. Calls `onHit` once when `pid` and its descendants exceed a limit, and then stops watching them. */
  add(pid: number, limits: SpawnLimits, onHit: (hit: LimitHit) => void): void {
    this.watched.set(pid, { limits, onHit });
    this.cancelCheck ??= this.clock.schedule(CHECK_INTERVAL_MS, () => this.check());
  }

  remove(pid: number): void {
    this.watched.delete(pid);
    if (this.watched.size > 0) return;
    this.cancelCheck?.();
    this.cancelCheck = null;
  }

  private check(): void {
    this.cancelCheck = this.clock.schedule(CHECK_INTERVAL_MS, () => this.check());
    const table = readProcessTable();
    const children = childrenByParent(table);
    for (const [pid, { limits, onHit }] of [...this.watched]) {
      const hit = cgroupHit(limits.cgroups ?? []) ?? exceeded(processTree(pid, table, children), limits);
      if (hit === null) continue;
      this.remove(pid);
      onHit(hit);
    }
  }
}

function exceeded(tree: readonly ProcessRow[], limits: SpawnLimits): LimitHit | null {
  let tasks = 0;
  let residentBytes = 0;
  for (const row of tree) {
    tasks += row.threadCount;
    residentBytes += row.residentPages * PAGE_BYTES;
  }
  if (tasks >= limits.taskCount) return 'processes';
  // Resident pages count a shared page once for each process. The sum is an upper bound: when it is below the limit, the slower exact sum
  // need not be computed.
  if (residentBytes <= limits.memoryBytes) return null;
  let exactBytes = 0;
  for (const row of tree) exactBytes += proportionalBytes(row.pid) ?? row.residentPages * PAGE_BYTES;
  return exactBytes > limits.memoryBytes ? 'memory' : null;
}
