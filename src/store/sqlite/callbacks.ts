import { sql } from 'kysely';
import type { CallbackRow } from '../rows.ts';
import type { CallbackTable } from '../store.ts';
import type { Connection } from './tables.ts';

export class SqliteCallbacks implements CallbackTable {
  private readonly db: Connection;

  constructor(db: Connection) {
    this.db = db;
  }

  async insert(row: CallbackRow): Promise<void> {
    await this.db.insertInto('callbacks').values(row).execute();
  }

  due(nowMs: number, limit: number): Promise<CallbackRow[]> {
    return this.db
      .selectFrom('callbacks')
      .selectAll()
      .where(sql<boolean>`delivered_at is null`)
      .where('next_try_ms', '<=', nowMs)
      .orderBy('next_try_ms')
      .limit(limit)
      .execute();
  }

  async update(taskId: string, patch: Partial<Omit<CallbackRow, 'task_id'>>): Promise<void> {
    await this.db.updateTable('callbacks').set(patch).where('task_id', '=', taskId).execute();
  }

  async countUndelivered(): Promise<number> {
    const row = await this.db
      .selectFrom('callbacks')
      .select((select) => select.fn.countAll<number>().as('count'))
      .where(sql<boolean>`delivered_at is null`)
      .executeTakeFirstOrThrow();
    return row.count;
  }
}
