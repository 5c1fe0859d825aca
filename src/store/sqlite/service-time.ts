import { sql } from 'kysely';
import type { ServiceTimeTable } from '../store.ts';
import type { Connection } from './tables.ts';

export class SqliteServiceTime implements ServiceTimeTable {
  private readonly db: Connection;

  constructor(db: Connection) {
    this.db = db;
  }

  async advance(nowMs: number): Promise<number> {
    const row = await this.db
      .updateTable('service_time')
      .set({ now_ms: sql<number>`max(now_ms, ${nowMs})` })
      .where('id', '=', 1)
      .returning('now_ms')
      .executeTakeFirstOrThrow();
    return row.now_ms;
  }
}
