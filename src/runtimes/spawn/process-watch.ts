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

/** How long a command may exceed a limit before it is noticed. One scan of 500 processes takes about 5 ms. */
const TICK_MS = 250;
/** x86-64 and most arm64 kernels; a larger page makes the estimate from resident pages too low, never the exact sum. */
const PAGE_BYTES = 4096;

export type LimitHit = 'memory' | 'processes';

type Watched = { readonly limits: SpawnLimits; readonly onHit: (hit: LimitHit) => void };

/** Looks at all watched process trees four times a second, for as long as there are any. */
export class ProcessWatch {
  private readonly clock: Clock;
  private readonly watched = new Map<number, Watched>();
  private cancelTick: (() => void) | null = null;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** Calls `onHit` once when `pid` and its descendants exceed a limit. */
  add(pid: number, limits: SpawnLimits, onHit: (hit: LimitHit) => void): void {
    this.watched.set(pid, { limits, onHit });
    this.cancelTick ??= this.clock.schedule(TICK_MS, () => this.tick());
  }

  remove(pid: number): void {
    this.watched.delete(pid);
    if (this.watched.size > 0) return;
    this.cancelTick?.();
    this.cancelTick = null;
  }

  private tick(): void {
    this.cancelTick = this.clock.schedule(TICK_MS, () => this.tick());
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
  // Resident pages count shared ones once per process, so they only tell that the exact sum is worth its cost.
  if (residentBytes <= limits.memoryBytes) return null;
  let exactBytes = 0;
  for (const row of tree) exactBytes += proportionalBytes(row.pid) ?? row.residentPages * PAGE_BYTES;
  return exactBytes > limits.memoryBytes ? 'memory' : null;
}
