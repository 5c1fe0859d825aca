import { sql } from 'kysely';
import type { ServiceTimeTable } from '../store.ts';
import type { SqlFlavor } from './flavor.ts';
import type { Connection } from './tables.ts';

export class SqlServiceTime implements ServiceTimeTable {
  private readonly db: Connection;
  private readonly flavor: SqlFlavor;

  constructor(db: Connection, flavor: SqlFlavor) {
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
