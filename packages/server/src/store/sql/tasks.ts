import { FloeError } from '@floe-rl/core';
import type { TaskState } from '@floe-rl/core/schema';
import { sql } from 'kysely';
import type { EndedCounts, TaskPatch, TaskRow } from '../rows.ts';
import type { Removed, TaskTable, TombstoneTable } from '../store.ts';
import { OutdatedRead, type QueryBuilder, type SqlFlavor } from './database.ts';
import { removeFacts } from './fact-folding.ts';

export class SqlTasks implements TaskTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async reserve(taskId: string | null, idempotencyKey: string | null): Promise<void> {
    const { taskIdLock } = this.flavor;
    if (taskIdLock === null) return;
    // Ids contain no colon, so the lock of an idempotency key never equals the lock of a task id. The id is always locked before the key,
    // so that two submissions cannot wait for each other.
    if (taskId !== null) await taskIdLock(taskId).execute(this.db);
    if (idempotencyKey !== null) await taskIdLock(`key:${idempotencyKey}`).execute(this.db);
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
      throw new FloeError('conflict', `task ${taken.task_id} already has this id or idempotency key`);
    }
    await this.db.insertInto('tasks').values(row).execute();
  }

  get(taskId: string): Promise<TaskRow | undefined> {
    return this.db.selectFrom('tasks').selectAll().where('task_id', '=', taskId).executeTakeFirst();
  }

  async lock(taskId: string): Promise<TaskRow | undefined> {
    const { rows } = await sql<TaskRow>`
      select * from tasks where task_id = ${taskId} ${this.flavor.forUpdate}`.execute(this.db);
    return rows[0];
  }

  getMany(taskIds: readonly string[]): Promise<TaskRow[]> {
    return this.db.selectFrom('tasks').selectAll().where('task_id', 'in', this.flavor.texts(taskIds)).execute();
  }

  findByKey(idempotencyKey: string): Promise<TaskRow | undefined> {
    return this.db.selectFrom('tasks').selectAll().where('idempotency_key', '=', idempotencyKey).executeTakeFirst();
  }

  list(filter: { status: TaskState | null; limit: number }): Promise<TaskRow[]> {
    const all = this.db.selectFrom('tasks').selectAll().orderBy('order_no', 'desc').limit(filter.limit);
    return (filter.status === null ? all : all.where('status', '=', filter.status)).execute();
  }

  async update(taskId: string, patch: TaskPatch): Promise<void> {
    await this.db.updateTable('tasks').set(patch).where('task_id', '=', taskId).execute();
  }

  addEnded(taskId: string, added: EndedCounts): Promise<TaskRow> {
    return this.db
      .updateTable('tasks')
      .set((set) => ({
        completed_sessions: set('completed_sessions', '+', added.sessions),
        reward_sum: set('reward_sum', '+', added.rewardSum),
        reward_count: set('reward_count', '+', added.rewardCount),
        usable_sessions: set('usable_sessions', '+', added.usable),
        baseline_sessions: set('baseline_sessions', '+', added.inBaseline),
      }))
      .where('task_id', '=', taskId)
      .returningAll()
      .executeTakeFirstOrThrow();
  }

  overdue(nowMs: number, limit: number): Promise<TaskRow[]> {
    return this.db
      .selectFrom('tasks')
      .selectAll()
      .where(sql<boolean>`status = 'running' and deadline_ms is not null`)
      .where('deadline_ms', '<=', nowMs)
      .limit(limit)
      .execute();
  }

  unfinishedCancelled(limit: number): Promise<TaskRow[]> {
    return this.db
      .selectFrom('tasks')
      .selectAll()
      .where(sql<boolean>`status = 'cancelled' and ended_ms is null`)
      .limit(limit)
      .execute();
  }

  async removeEnded(endedBeforeMs: number, limit: number): Promise<Removed> {
    const { rows: candidates } = await sql<Pick<TaskRow, 'task_id' | 'total_sessions'>>`
      select task_id, total_sessions from tasks
      where ended_ms is not null and ended_ms < ${endedBeforeMs}
        and not exists (select 1 from uncollected where uncollected.task_id = tasks.task_id)
        and not exists (select 1 from callbacks where callbacks.task_id = tasks.task_id and delivered_at is null)
      order by ended_ms limit ${limit} ${this.flavor.skipLocked}`.execute(this.db);
    const tasks = this.flavor.texts(firstWithin(candidates, limit).map((row) => row.task_id));
    const { rows } = await sql<{ session_id: string }>`
      select session_id from sessions where task_id in ${tasks} limit ${limit}`.execute(this.db);
    const sessionIds = rows.map((row) => row.session_id);
    const sessions = this.flavor.texts(sessionIds);
    await removeFacts(this.db, this.flavor, sessionIds);
    for (const table of ['deliveries', 'results', 'sessions'] as const) {
      await sql`delete from ${sql.table(table)} where session_id in ${sessions}`.execute(this.db);
    }
    const { rows: removed } = await sql<{ task_id: string }>`
      delete from tasks where task_id in ${tasks}
        and not exists (select 1 from sessions where sessions.task_id = tasks.task_id) returning task_id`.execute(
      this.db,
    );
    const removedIds = this.flavor.texts(removed.map((row) => row.task_id));
    for (const table of ['callbacks', 'aliases'] as const) {
      await sql`delete from ${sql.table(table)} where task_id in ${removedIds}`.execute(this.db);
    }
    return { tasks: removed.length, sessions: sessionIds.length };
  }

  async countByStatus(): Promise<ReadonlyMap<TaskState, number>> {
    const rows = await this.db
      .selectFrom('task_counts')
      .select((select) => ['status', select.fn.sum<number>('tasks').as('count')])
      .groupBy('status')
      .execute();
    return new Map(rows.flatMap(({ status, count }) => (Number(count) === 0 ? [] : [[status, Number(count)]])));
  }

  async foldCounts(limit: number): Promise<void> {
    const { rows: waiting } = await sql`select 1 from task_counts limit ${limit}`.execute(this.db);
    if (waiting.length < limit) return;
    const sums = new Map<TaskState, number>();
    const changes = await this.db.deleteFrom('task_counts').returningAll().execute();
    for (const { status, tasks } of changes) sums.set(status, (sums.get(status) ?? 0) + Number(tasks));
    const rows = [...sums].map(([status, tasks]) => ({ status, tasks }));
    if (rows.length > 0) await this.db.insertInto('task_counts').values(rows).execute();
  }
}

/** Returns the first tasks that have at most `limit` sessions together, and always the first one. */
function firstWithin<Row extends Pick<TaskRow, 'total_sessions'>>(rows: readonly Row[], limit: number): readonly Row[] {
  let sessions = 0;
  const end = rows.findIndex((row, i) => {
    sessions += row.total_sessions;
    return i > 0 && sessions > limit;
  });
  return end === -1 ? rows : rows.slice(0, end);
}

/**
 * Stores the ids of tasks that were cancelled before they were submitted. Such a task has no row that could be locked. When several servers
 * can write concurrently, a submission and a cancellation therefore both lock the id, so that the later one sees the effect of the earlier
 * one.
 */
export class SqlTombstones implements TombstoneTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
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
      if (submitted !== undefined) throw new OutdatedRead(`task ${taskId} was submitted concurrently`);
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
