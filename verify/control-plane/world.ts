import { CommitRules } from './commit-rules.ts';
import type { Dice } from './dice.ts';
import { History } from './history.ts';
import { MemoryDatabase } from './memory-store/database.ts';
import type { RowChange } from './memory-store/state.ts';
import { GOOD_NETWORK, type Host, Network } from './network.ts';
import type { Plan } from './plan.ts';
import type { BlobShelf } from './sim-blobs.ts';
import { GOOD_DISK, type SimDatabase, SimDisk } from './sim-disk.ts';
import { Timeline } from './timeline.ts';

/** The engine that all agents ask. */
export type EngineMood = 'well' | 'failing' | 'hanging';

/** What all parts of one simulation share. */
export class World {
  readonly plan: Plan;
  readonly dice: Dice;
  readonly timeline = new Timeline();
  readonly network: Network;
  readonly database: SimDatabase;
  readonly shelf: BlobShelf = { blobs: new Map(), failPut: 0 };
  readonly history: History;
  readonly rules: CommitRules;
  engine: EngineMood = 'well';
  /** Of announcements between servers. */
  loseAnnouncement = 0;
  /** How far each host's wall clock is off, ms. */
  readonly wallOffsetMs = new Map<string, number>();
  /** Nothing goes wrong any more. */
  quiet = false;
  private lastId = 0;

  constructor(plan: Plan, dice: Dice) {
    this.plan = plan;
    this.dice = dice;
    this.network = new Network(this.timeline, dice.fork());
    this.history = new History(this.timeline);
    const watch = (changes: readonly RowChange[]): void => this.rules.check(changes);
    const disk = new SimDisk(this.timeline, dice.fork(), watch);
    this.database = { rows: new MemoryDatabase(disk), disk, up: true };
    this.rules = new CommitRules(this.timeline, this.database.rows.state, this.history, plan);
  }

  /** Sorts by time, as ids of the real thing do. */
  newId(prefix: string): string {
    this.lastId++;
    return `${prefix}_${String(this.lastId).padStart(6, '0')}`;
  }

  host(name: string): Host {
    return { name, process: null };
  }

  settle(): void {
    this.quiet = true;
    this.network.faults = GOOD_NETWORK;
    this.network.heal();
    this.database.up = true;
    this.database.disk.faults = GOOD_DISK;
    this.shelf.failPut = 0;
    this.loseAnnouncement = 0;
    this.engine = 'well';
    this.timeline.note('world', 'is quiet from here on');
  }
}
