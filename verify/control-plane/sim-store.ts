import { FloeError } from '../../src/core/errors.ts';
import type { Store, StoreTables } from '../../src/store/index.ts';
import type { Dice } from './dice.ts';
import type { SimDatabase } from './sim-disk.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

/** From a server to the database and back, ms. */
const WAY_MS = { from: 0.05, to: 0.8 };
/** What one server announces reaches the others after this, ms. */
const ANNOUNCE_MS = { from: 0.2, to: 30 };

/** The connection of one server process to the database. */
export class SimStore implements Store {
  private readonly process: SimProcess;
  private readonly database: SimDatabase;
  private readonly timeline: Timeline;
  private readonly dice: Dice;
  /** How often an announcement is lost. */
  private readonly loseAnnouncement: () => number;

  constructor(
    process: SimProcess,
    world: { database: SimDatabase; timeline: Timeline; dice: Dice; loseAnnouncement: () => number },
  ) {
    this.process = process;
    this.database = world.database;
    this.timeline = world.timeline;
    this.dice = world.dice;
    this.loseAnnouncement = world.loseAnnouncement;
  }

  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.process.outside(this.reach(work));
  }

  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.transaction(work);
  }

  announce(message: string): void {
    if (!this.database.up || this.dice.chance(this.loseAnnouncement())) return;
    this.timeline.after(this.dice.between(ANNOUNCE_MS.from, ANNOUNCE_MS.to), () => {
      if (this.database.up) this.database.rows.announce(this, message);
    });
  }

  listen(listener: (message: string) => void): () => void {
    const end = this.database.rows.subscribe(this, (message) => this.process.enter(() => listener(message)));
    this.process.onKill(end);
    return end;
  }

  async close(): Promise<void> {}

  private async reach<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const { database, process, dice, timeline } = this;
    await timeline.pause(dice.between(WAY_MS.from, WAY_MS.to));
    // What a stopped process was about to do waits until it goes on.
    await new Promise<void>((resolve) => process.enter(resolve));
    return database.rows.run((tables) => {
      // What a process was about to do when it was killed is not done.
      if (!process.alive) throw new FloeError('store_unavailable', 'the connection is gone');
      if (!database.up) throw new FloeError('store_unavailable', 'the database cannot be reached');
      database.disk.owner = process;
      return work(tables);
    });
  }
}
