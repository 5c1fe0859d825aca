import { FloeError } from '../../core/errors.ts';
import type { TaskState } from '../../schema/index.ts';
import type { TaskRow } from '../rows.ts';
import type { TaskTable } from '../store.ts';
import type { Connection } from './tables.ts';

export class SqliteTasks implements TaskTable {
  private readonly db: Connection;

  constructor(db: Connection) {
    this.db = db;
  }

  async insert(row: TaskRow): Promise<void> {
    const taken = await this.db
      .selectFrom('tasks')
      .select('task_id')
      .where((where) =>
        where.or([
          where('task_id', '=', row.task_id),
          ...(row.idempotency_key === null ? [] : [where('idempotency_key', '=', row.idempotency_key)]),
        ]),
      )
      .executeTakeFirst();
    if (taken !== undefined) {
      throw new FloeError('conflict', `task ${taken.task_id} has this id or idempotency key already`);
    }
    await this.db.insertInto('tasks').values(row).execute();
  }

  get(taskId: string): Promise<TaskRow | undefined> {
    return this.db.selectFrom('tasks').selectAll().where('task_id', '=', taskId).executeTakeFirst();
  }

  findByKey(idempotencyKey: string): Promise<TaskRow | undefined> {
    return this.db.selectFrom('tasks').selectAll().where('idempotency_key', '=', idempotencyKey).executeTakeFirst();
  }

  list(filter: { status: TaskState | null; limit: number }): Promise<TaskRow[]> {
    const all = this.db.selectFrom('tasks').selectAll().orderBy('order_no', 'desc').limit(filter.limit);
    return (filter.status === null ? all : all.where('status', '=', filter.status)).execute();
  }

  async setStatus(taskId: string, status: TaskState): Promise<void> {
    await this.db.updateTable('tasks').set({ status }).where('task_id', '=', taskId).execute();
  }

  addCompleted(taskId: string, added: { sessions: number; rewardSum: number; rewardCount: number }): Promise<TaskRow> {
    return this.db
      .updateTable('tasks')
      .set((set) => ({
        completed_sessions: set('completed_sessions', '+', added.sessions),
        reward_sum: set('reward_sum', '+', added.rewardSum),
        reward_count: set('reward_count', '+', added.rewardCount),
      }))
      .where('task_id', '=', taskId)
      .returningAll()
      .executeTakeFirstOrThrow();
  }

  async countByStatus(): Promise<ReadonlyMap<TaskState, number>> {
    const rows = await this.db
      .selectFrom('tasks')
      .select((select) => ['status', select.fn.countAll<number>().as('count')])
      .groupBy('status')
      .execute();
    return new Map(rows.map((row) => [row.status, row.count]));
  }
}
