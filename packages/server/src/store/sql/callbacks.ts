import { sql } from 'kysely';
import type { CallbackRow } from '../rows.ts';
import type { CallbackTable } from '../store.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';

export class SqlCallbacks implements CallbackTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async insert(row: CallbackRow): Promise<void> {
    await this.db.insertInto('callbacks').values(row).execute();
  }

  get(taskId: string): Promise<CallbackRow | undefined> {
    return this.db.selectFrom('callbacks').selectAll().where('task_id', '=', taskId).executeTakeFirst();
  }

  async claimDue(nowMs: number, limit: number, untilMs: number): Promise<CallbackRow[]> {
    // The limit is in a common table expression, because a subquery may be evaluated more than once and the statement would then change
    // more rows than the limit.
    const { rows } = await sql<CallbackRow>`
      with due as (
        select task_id from callbacks where delivered_at is null and next_try_ms <= ${nowMs}
        order by next_try_ms limit ${limit} ${this.flavor.skipLocked}
      )
      update callbacks set next_try_ms = ${untilMs} where task_id in (select task_id from due)
      returning *`.execute(this.db);
    return rows;
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
