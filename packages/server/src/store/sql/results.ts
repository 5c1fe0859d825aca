import { sql } from 'kysely';
import type { ConsumerRow, DeliveryRow, ResultBlobs, ResultWithSummary, SessionRow } from '../rows.ts';
import type { Page, ResultTable } from '../store.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';

export class SqlResults implements ResultTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async append(
    session: Pick<SessionRow, 'session_id' | 'task_id' | 'trainer'>,
    { trajectory, completions, artifacts }: ResultBlobs,
  ): Promise<number> {
    // The transaction that assigns a result's cursor holds the cursor lock until it ends, so cursors become visible to readers in ascending
    // order.
    const { rows } = await sql<{ cursor: number }>`
      with turn as (select ${this.flavor.cursorLock} as mine)
      insert into results (session_id, task_id, trainer, trajectory_ref, trajectory_bytes, completions_ref,
        completions_bytes, artifacts_ref, artifacts_bytes)
      select ${session.session_id}, ${session.task_id}, ${session.trainer},
        ${trajectory?.ref ?? null}, ${trajectory?.bytes ?? 0}, ${completions?.ref ?? null}, ${completions?.bytes ?? 0},
        ${artifacts?.ref ?? null}, ${artifacts?.bytes ?? 0}
      from turn where mine
      returning cursor`.execute(this.db);
    const [row] = rows;
    if (row === undefined) throw new Error('the database returned no cursor for a result');
    return row.cursor;
  }

  page(after: number, limit: number, trainer: string | null): Promise<ResultWithSummary[]> {
    const all = this.withSummary().where('results.cursor', '>', after).limit(limit);
    return (trainer === null ? all : all.where('results.trainer', '=', trainer)).execute();
  }

  ofTask(taskId: string, page?: Page): Promise<ResultWithSummary[]> {
    const all = this.withSummary().where('results.task_id', '=', taskId);
    return (page === undefined ? all : all.where('results.cursor', '>', page.after).limit(page.limit)).execute();
  }

  ofTasks(taskIds: readonly string[]): Promise<ResultWithSummary[]> {
    return this.withSummary().where('results.task_id', 'in', this.flavor.texts(taskIds)).execute();
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

  async lastCursor(): Promise<number> {
    const { rows } = await sql<{ cursor: number }>`select ${this.flavor.lastCursor} as cursor`.execute(this.db);
    return rows[0]?.cursor ?? 0;
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
    const { session_id: _, epoch: __, ...rest } = row;
    const added = await this.db
      .insertInto('deliveries')
      .values(row)
      .onConflict((conflict) =>
        conflict.columns(['session_id', 'epoch']).doUpdateSet(rest).where(sql<boolean>`deliveries.kind = 'partial'`),
      )
      .returning('epoch')
      .executeTakeFirst();
    if (added === undefined) throw new Error(`session ${row.session_id} already has a delivery of epoch ${row.epoch}`);
  }

  deliveriesOf(sessionId: string): Promise<DeliveryRow[]> {
    return this.db.selectFrom('deliveries').selectAll().where('session_id', '=', sessionId).orderBy('epoch').execute();
  }

  async collect(trainer: string | null, upToCursor: number): Promise<void> {
    const all = this.db.deleteFrom('uncollected').where('cursor', '<=', upToCursor);
    await (trainer === null ? all : all.where('trainer', '=', trainer)).execute();
  }

  async collectBatches(batchId: string, after: number, upTo: number): Promise<void> {
    await sql`
      delete from uncollected where task_id in (
        select task_id from batch_groups
        where batch_id = ${batchId} and batch_no is not null and batch_no > ${after} and batch_no <= ${upTo})`.execute(
      this.db,
    );
  }

  async collectTasks(taskIds: readonly string[]): Promise<void> {
    await this.db.deleteFrom('uncollected').where('task_id', 'in', this.flavor.texts(taskIds)).execute();
  }

  async consumer(name: string): Promise<ConsumerRow | undefined> {
    const row = await this.db.selectFrom('consumers').selectAll().where('consumer', '=', name).executeTakeFirst();
    return row && consumerRow(row);
  }

  async putConsumer(row: ConsumerRow): Promise<ConsumerRow> {
    const furthest = sql<number>`${sql.raw(this.flavor.greatest)}(consumers.cursor, ${row.cursor})`;
    const stored = await this.db
      .insertInto('consumers')
      .values({ ...row, trainer: row.trainer ?? '' })
      .onConflict((conflict) => conflict.column('consumer').doUpdateSet({ cursor: furthest }))
      .returningAll()
      .executeTakeFirstOrThrow();
    return consumerRow(stored);
  }

  async referenced(refs: readonly string[]): Promise<ReadonlySet<string>> {
    const list = this.flavor.texts(refs);
    const selectRefs = (table: 'results' | 'deliveries', column: string) =>
      sql`select ${sql.ref(column)} as ref from ${sql.table(table)} where ${sql.ref(column)} in ${list}`;
    const parts = (['results', 'deliveries'] as const).flatMap((table) =>
      ['trajectory_ref', 'completions_ref', 'artifacts_ref'].map((column) => selectRefs(table, column)),
    );
    const { rows } = await sql<{ ref: string }>`${sql.join(parts, sql` union `)}`.execute(this.db);
    return new Set(rows.map((row) => row.ref));
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

/** Converts a stored consumer. An empty `trainer` in the database means all trainers, because the name of a trainer is never empty. */
function consumerRow(stored: { consumer: string; trainer: string; cursor: number }): ConsumerRow {
  return { ...stored, trainer: stored.trainer === '' ? null : stored.trainer };
}
