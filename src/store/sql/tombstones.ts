import type { TombstoneTable } from '../store.ts';
import type { SqlFlavor } from './flavor.ts';
import type { Connection } from './tables.ts';
import { WorkAgain } from './work-again.ts';

/**
 * A task that is cancelled before it is submitted has no row to lock. Where several servers write at a time, both sides lock the id
 * instead: of a submit and a cancel that meet, the later one sees what the other has done.
 */
export class SqlTombstones implements TombstoneTable {
  private readonly db: Connection;
  private readonly flavor: SqlFlavor;

  constructor(db: Connection, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async put(taskId: string, expiresMs: number): Promise<void> {
    if (this.flavor.taskIdLock !== null) {
      await this.flavor.taskIdLock(taskId).execute(this.db);
      const submitted = await this.db
        .selectFrom('tasks')
        .select('task_id')
        .where('task_id', '=', taskId)
        .executeTakeFirst();
      if (submitted !== undefined) throw new WorkAgain(`task ${taskId} was submitted meanwhile`);
    }
    await this.db
      .insertInto('tombstones')
      .values({ task_id: taskId, expires_ms: expiresMs })
      .onConflict((conflict) => conflict.column('task_id').doUpdateSet({ expires_ms: expiresMs }))
      .execute();
  }

  async has(taskId: string, nowMs: number): Promise<boolean> {
    await this.flavor.taskIdLock?.(taskId).execute(this.db);
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
