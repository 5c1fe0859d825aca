import { sql } from 'kysely';
import type { DurationTable } from '../store.ts';
import type { SqlFlavor } from './flavor.ts';
import type { Connection } from './tables.ts';

/** What a new duration weighs once a few are known: recent ones count more, since the policy changes. */
const NEWEST_WEIGHT = 0.3;

export class SqlDurations implements DurationTable {
  private readonly db: Connection;
  private readonly flavor: SqlFlavor;

  constructor(db: Connection, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async means(keys: readonly string[]): Promise<ReadonlyMap<string, number>> {
    const rows = await this.db
      .selectFrom('durations')
      .selectAll()
      .where('duration_key', 'in', this.flavor.texts(keys))
      .execute();
    return new Map(rows.map((row) => [row.duration_key, row.mean_ms]));
  }

  async overallMean(): Promise<number | null> {
    const row = await this.db
      .selectFrom('durations')
      .select((select) => select.fn.avg<number | null>('mean_ms').as('mean'))
      .executeTakeFirstOrThrow();
    return row.mean;
  }

  async observe(key: string, ms: number): Promise<void> {
    await this.db
      .insertInto('durations')
      .values({ duration_key: key, mean_ms: ms, samples: 1 })
      .onConflict((conflict) =>
        conflict.column('duration_key').doUpdateSet({
          // A plain mean at first, then one that forgets.
          mean_ms: sql<number>`durations.mean_ms + (${ms} - durations.mean_ms) * ${sql.raw(this.flavor.greatest)}(${NEWEST_WEIGHT}, 1.0 / (durations.samples + 1))`,
          samples: sql<number>`durations.samples + 1`,
        }),
      )
      .execute();
  }
}
