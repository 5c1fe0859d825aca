import type { Dice } from './dice.ts';
import type { Disk, MemoryDatabase, SyncOutcome } from './memory-store/database.ts';
import type { RowChange } from './memory-store/state.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

/** How bad the disk is; all are chances of one commit. */
export type DiskFaults = {
  readonly refuse: number;
  /** The commit succeeds, but the caller is told that it failed. */
  readonly unknown: number;
  readonly interrupt: number;
  readonly slow: number;
};

export const GOOD_DISK: DiskFaults = { refuse: 0, unknown: 0, interrupt: 0, slow: 0 };

/** A sync to disk, ms. */
const SYNC_MS = { from: 0.2, to: 2 };
const SLOW_SYNC_MS = { from: 20, to: 600 };

/** The disk under the database of one world, which may fail. */
export class SimDisk implements Disk {
  faults: DiskFaults = GOOD_DISK;
  /** Whose transaction is being committed. */
  owner: SimProcess | null = null;
  private readonly timeline: Timeline;
  private readonly dice: Dice;
  private readonly watch: (changes: readonly RowChange[]) => void;

  constructor(timeline: Timeline, dice: Dice, watch: (changes: readonly RowChange[]) => void) {
    this.timeline = timeline;
    this.dice = dice;
    this.watch = watch;
  }

  async sync(): Promise<SyncOutcome> {
    const { owner, dice } = this;
    const slow = dice.chance(this.faults.slow);
    const range = slow ? SLOW_SYNC_MS : SYNC_MS;
    await this.timeline.pause(dice.between(range.from, range.to));
    // Whether the commit of a process that was killed got through is anybody's guess.
    if (owner !== null && !owner.alive) return dice.chance(0.5) ? 'synced' : 'refused';
    if (dice.chance(this.faults.refuse)) return 'refused';
    return dice.chance(this.faults.unknown) ? 'unknown' : 'synced';
  }

  interrupts(): boolean {
    return this.dice.chance(this.faults.interrupt);
  }

  committed(changes: readonly RowChange[]): void {
    this.watch(changes);
  }
}

/** The database and whether it can be reached at all. */
export type SimDatabase = { readonly rows: MemoryDatabase; readonly disk: SimDisk; up: boolean };
