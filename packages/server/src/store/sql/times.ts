import { sql } from 'kysely';
import type { DurationTable, ServiceTimeTable } from '../store.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';

/**
 * Minimum weight of a new duration in the running mean. It applies once a few durations are known. It makes recent durations count more,
 * because the policy changes during training.
 */
const NEWEST_WEIGHT = 0.3;

export class SqlDurations implements DurationTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
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
          // At first this is a plain mean: the n-th duration has the weight 1/n. Once 1/n is below NEWEST_WEIGHT, each new duration has the
          // weight NEWEST_WEIGHT, so that the weight of older durations decreases.
          mean_ms: sql<number>`durations.mean_ms + (${ms} - durations.mean_ms) * ${sql.raw(this.flavor.greatest)}(${NEWEST_WEIGHT}, 1.0 / (durations.samples + 1))`,
          samples: sql<number>`durations.samples + 1`,
        }),
      )
      .execute();
  }
}

export class SqlServiceTime implements ServiceTimeTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async get(): Promise<number> {
    return (await this.db.selectFrom('service_time').select('now_ms').executeTakeFirstOrThrow()).now_ms;
  }

  async advance(nowMs: number): Promise<number> {
    const row = await this.db
      .updateTable('service_time')
      .set({ now_ms: sql<number>`${sql.raw(this.flavor.greatest)}(now_ms, ${nowMs})` })
      .where('id', '=', 1)
      .returning('now_ms')
      .executeTakeFirstOrThrow();
    return row.now_ms;
  }
}
