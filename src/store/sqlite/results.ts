import type { DeliveryRow, ResultBlobs, ResultWithSummary } from '../rows.ts';
import type { ResultTable } from '../store.ts';
import type { Connection } from './tables.ts';

export class SqliteResults implements ResultTable {
  private readonly db: Connection;

  constructor(db: Connection) {
    this.db = db;
  }

  async append(sessionId: string, taskId: string, blobs: ResultBlobs): Promise<number> {
    // SQLite has one writer at a time, so cursors become visible in the order in which they are assigned.
    const row = await this.db
      .insertInto('results')
      .values({
        session_id: sessionId,
        task_id: taskId,
        trajectory_ref: blobs.trajectory?.ref ?? null,
        trajectory_bytes: blobs.trajectory?.bytes ?? 0,
        completions_ref: blobs.completions?.ref ?? null,
        completions_bytes: blobs.completions?.bytes ?? 0,
        artifacts_ref: blobs.artifacts?.ref ?? null,
        artifacts_bytes: blobs.artifacts?.bytes ?? 0,
      })
      .returning('cursor')
      .executeTakeFirstOrThrow();
    return row.cursor;
  }

  page(after: number, limit: number): Promise<ResultWithSummary[]> {
    return this.withSummary().where('results.cursor', '>', after).limit(limit).execute();
  }

  ofTask(taskId: string): Promise<ResultWithSummary[]> {
    return this.withSummary().where('results.task_id', '=', taskId).execute();
  }

  ofSession(sessionId: string): Promise<ResultWithSummary | undefined> {
    return this.withSummary().where('results.session_id', '=', sessionId).executeTakeFirst();
  }

  async newestCursor(): Promise<number> {
    const row = await this.db
      .selectFrom('results')
      .select('cursor')
      .orderBy('cursor', 'desc')
      .limit(1)
      .executeTakeFirst();
    return row?.cursor ?? 0;
  }

  delivery(sessionId: string, epoch: number): Promise<DeliveryRow | undefined> {
    return this.db
      .selectFrom('deliveries')
      .selectAll()
      .where('session_id', '=', sessionId)
      .where('epoch', '=', epoch)
      .executeTakeFirst();
  }

  async addDelivery(row: DeliveryRow): Promise<void> {
    await this.db.insertInto('deliveries').values(row).execute();
  }

  private withSummary() {
    return this.db
      .selectFrom('results')
      .innerJoin('sessions', 'sessions.session_id', 'results.session_id')
      .selectAll('results')
      .select((select) => select.ref('sessions.summary').$notNull().as('summary'))
      .orderBy('results.cursor');
  }
}
