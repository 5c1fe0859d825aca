import type { TombstoneTable } from '../store.ts';
import type { Connection } from './tables.ts';

export class SqlTombstones implements TombstoneTable {
  private readonly db: Connection;

  constructor(db: Connection) {
    this.db = db;
  }

  async put(taskId: string, expiresMs: number): Promise<void> {
    await this.db
      .insertInto('tombstones')
      .values({ task_id: taskId, expires_ms: expiresMs })
      .onConflict((conflict) => conflict.column('task_id').doUpdateSet({ expires_ms: expiresMs }))
      .execute();
  }

  async has(taskId: string, nowMs: number): Promise<boolean> {
    const row = await this.db
      .selectFrom('tombstones')
      .select('task_id')
      .where('task_id', '=', taskId)
      .where('expires_ms', '>', nowMs)
      .executeTakeFirst();
    return row !== undefined;
  }

  async removeExpired(nowMs: number): Promise<void> {
    await this.db.deleteFrom('tombstones').where('expires_ms', '<=', nowMs).execute();
  }
}
