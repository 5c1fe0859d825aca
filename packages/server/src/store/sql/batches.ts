import { nextEventLoopTurn, settleAll } from '@floe-rl/core';
import { sql } from 'kysely';
import type {
  BatchCounts,
  BatchDataRow,
  BatchDataRowPatch,
  BatchGroupChangeRow,
  BatchGroupPatch,
  BatchGroupRow,
  BatchGroupState,
  BatchGroupTotals,
  BatchRowTotals,
  BatchStreamPatch,
  BatchStreamRow,
  HandedGroupRow,
  OpenGroupRow,
  OpenState,
} from '../rows.ts';
import type { BatchTables } from '../store.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';

/** Number of rows that one statement inserts, so that it stays below the databases' limits on parameters. */
const INSERT_ROWS = 500;

const STREAM_COLUMNS = [
  'batch_id',
  'digest',
  'request',
  'trainer',
  'status',
  'last_batch',
  'requested_batch',
  'acknowledged',
  'policy_version',
  'policy_step',
  'requested_size',
  'row_count',
  'rows_complete',
  'group_count',
  'epoch',
  'position',
  'source_error',
  'source_retry_ms',
  'ended_ms',
  'created_at',
] as const satisfies readonly (keyof BatchStreamRow)[];

const HISTORY_COLUMNS = [
  'batch_id',
  'row_index',
  'problem',
  'last_epoch',
  'mean_reward',
  'last_result',
  'rejections',
  'retired',
] as const satisfies readonly (keyof BatchDataRow)[];

export class SqlBatches implements BatchTables {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async addStream(row: BatchStreamRow): Promise<boolean> {
    const added = await this.db
      .insertInto('batch_streams')
      .values(row)
      .onConflict((conflict) => conflict.column('batch_id').doNothing())
      .returning('batch_id')
      .executeTakeFirst();
    return added !== undefined;
  }

  stream(batchId: string): Promise<BatchStreamRow | undefined> {
    return this.db
      .selectFrom('batch_streams')
      .select(STREAM_COLUMNS)
      .where('batch_id', '=', batchId)
      .executeTakeFirst();
  }

  async lockStream(batchId: string): Promise<BatchStreamRow | undefined> {
    const columns = sql.join(STREAM_COLUMNS.map((column) => sql.ref(column)));
    const { rows } = await sql<BatchStreamRow>`
      select ${columns} from batch_streams where batch_id = ${batchId} ${this.flavor.forUpdate}`.execute(this.db);
    return rows[0];
  }

  streams({ status, limit }: { status: BatchStreamRow['status'] | null; limit: number }): Promise<BatchStreamRow[]> {
    const all = this.db.selectFrom('batch_streams').select(STREAM_COLUMNS).orderBy('order_no', 'desc').limit(limit);
    return (status === null ? all : all.where('status', '=', status)).execute();
  }

  async updateStream(batchId: string, patch: BatchStreamPatch): Promise<void> {
    await this.db.updateTable('batch_streams').set(patch).where('batch_id', '=', batchId).execute();
  }

  async addRows(rows: readonly BatchDataRow[]): Promise<void> {
    for (let from = 0; from < rows.length; from += INSERT_ROWS) {
      // SQLite runs statements synchronously, and thousands of rows would block the event loop for seconds.
      if (from > 0) await nextEventLoopTurn();
      await this.db
        .insertInto('batch_rows')
        .values(rows.slice(from, from + INSERT_ROWS))
        .execute();
    }
  }

  row(batchId: string, rowIndex: number): Promise<BatchDataRow | undefined> {
    return this.db
      .selectFrom('batch_rows')
      .selectAll()
      .where('batch_id', '=', batchId)
      .where('row_index', '=', rowIndex)
      .executeTakeFirst();
  }

  async rowFields(batchId: string, from: number, to: number): Promise<string[]> {
    const rows = await this.db
      .selectFrom('batch_rows')
      .select('fields')
      .where('batch_id', '=', batchId)
      .where('row_index', '>=', from)
      .where('row_index', '<', to)
      .orderBy('row_index')
      .execute();
    return rows.map(({ fields }) => fields);
  }

  async updateRow(batchId: string, rowIndex: number, patch: BatchDataRowPatch): Promise<void> {
    await this.db
      .updateTable('batch_rows')
      .set(patch)
      .where('batch_id', '=', batchId)
      .where('row_index', '=', rowIndex)
      .execute();
  }

  histories(batchId: string): Promise<Omit<BatchDataRow, 'fields'>[]> {
    return this.db
      .selectFrom('batch_rows')
      .select(HISTORY_COLUMNS)
      .where('batch_id', '=', batchId)
      .where('problem', 'is', null)
      .where('retired', '=', 0)
      .orderBy('row_index')
      .execute();
  }

  invalidRows(batchId: string, limit: number): Promise<Omit<BatchDataRow, 'fields'>[]> {
    return this.db
      .selectFrom('batch_rows')
      .select(HISTORY_COLUMNS)
      .where('batch_id', '=', batchId)
      .where(sql<boolean>`problem is not null`)
      .orderBy('row_index')
      .limit(limit)
      .execute();
  }

  async countUnsampledRows(batchId: string): Promise<BatchRowTotals> {
    const counts = await this.db
      .selectFrom('batch_rows')
      .select((select) => ['retired', select.fn.countAll<number>().as('count')])
      .where('batch_id', '=', batchId)
      .where(sql<boolean>`(problem is not null or retired = 1)`)
      .groupBy('retired')
      .execute();
    const countOf = (retired: number): number => Number(counts.find((row) => row.retired === retired)?.count ?? 0);
    return { invalid: countOf(0), retired: countOf(1) };
  }

  async plan(batchId: string, epoch: number): Promise<string | undefined> {
    const plan = await this.db
      .selectFrom('batch_plans')
      .select('rows')
      .where('batch_id', '=', batchId)
      .where('epoch', '=', epoch)
      .executeTakeFirst();
    return plan?.rows;
  }

  async putPlan(batchId: string, epoch: number, rows: string): Promise<void> {
    await this.db.deleteFrom('batch_plans').where('batch_id', '=', batchId).execute();
    await this.db.insertInto('batch_plans').values({ batch_id: batchId, epoch, rows }).execute();
  }

  async addGroup(row: BatchGroupRow): Promise<void> {
    await this.db.insertInto('batch_groups').values(row).execute();
  }

  groupOfTask(taskId: string): Promise<BatchGroupRow | undefined> {
    return this.db.selectFrom('batch_groups').selectAll().where('task_id', '=', taskId).executeTakeFirst();
  }

  async updateGroup(batchId: string, groupNo: number, patch: BatchGroupPatch): Promise<void> {
    await this.db
      .updateTable('batch_groups')
      .set(patch)
      .where('batch_id', '=', batchId)
      .where('group_no', '=', groupNo)
      .execute();
  }

  async updateGroups(taskIds: readonly string[], patch: BatchGroupPatch): Promise<void> {
    await this.db.updateTable('batch_groups').set(patch).where('task_id', 'in', this.flavor.texts(taskIds)).execute();
  }

  async handOut(
    batchId: string,
    batchNo: number,
    staleness: ReadonlyMap<string, string>,
  ): Promise<readonly HandedGroupRow[]> {
    await sql`
      update batch_groups set state = 'handed', batch_no = ${batchNo}, staleness = handed.value
      from ${this.flavor.pairs(staleness)} as handed
      where batch_groups.task_id = handed.key`.execute(this.db);
    const [groups] = await settleAll([this.groupsOfBatch(batchId, batchNo), this.foldChanges(batchId)]);
    return groups;
  }

  async openState(batchId: string): Promise<OpenState> {
    const [groups, unsampledRows] = await settleAll([this.openGroups(batchId), this.countUnsampledRows(batchId)]);
    return { groups, unsampledRows };
  }

  private async openGroups(batchId: string): Promise<OpenGroupRow[]> {
    // Each part is read by its own index. With `or`, SQLite would read all groups of the stream.
    const { rows } = await sql<OpenGroupRow>`
      select open.*,
        case when exists (select 1 from tasks where tasks.task_id = open.task_id) then 1 else 0 end as is_stored
      from (
        select * from batch_groups where batch_id = ${batchId} and state = 'running'
        union all select * from batch_groups where batch_id = ${batchId} and state = 'ready'
        union all select * from batch_groups where batch_id = ${batchId} and repeat = 1 and state not in ('running', 'ready')
      ) as open order by group_no`.execute(this.db);
    return rows;
  }

  groupsOfBatch(batchId: string, batchNo: number): Promise<HandedGroupRow[]> {
    return this.db
      .selectFrom('batch_groups as handed')
      .leftJoin('batch_rows as row', (join) =>
        join.onRef('row.batch_id', '=', 'handed.batch_id').onRef('row.row_index', '=', 'handed.row_index'),
      )
      .selectAll('handed')
      .select('row.fields')
      .where('handed.batch_id', '=', batchId)
      .where(sql<boolean>`handed.batch_no is not null`)
      .where('handed.batch_no', '=', batchNo)
      .orderBy('handed.group_no')
      .execute();
  }

  groups(batchId: string, state: BatchGroupState, limit: number): Promise<BatchGroupRow[]> {
    return this.db
      .selectFrom('batch_groups')
      .selectAll()
      .where('batch_id', '=', batchId)
      .where('state', '=', state)
      .orderBy('group_no')
      .limit(limit)
      .execute();
  }

  groupsOfBatches(batchId: string, after: number, upTo: number): Promise<BatchGroupRow[]> {
    return this.db
      .selectFrom('batch_groups')
      .selectAll()
      .where('batch_id', '=', batchId)
      .where(sql<boolean>`batch_no is not null`)
      .where('batch_no', '>', after)
      .where('batch_no', '<=', upTo)
      .orderBy('batch_no')
      .orderBy('group_no')
      .execute();
  }

  groupToRepeat(batchId: string): Promise<BatchGroupRow | undefined> {
    return this.db
      .selectFrom('batch_groups')
      .selectAll()
      .where('batch_id', '=', batchId)
      .where(sql<boolean>`repeat = 1`)
      .orderBy('group_no')
      .limit(1)
      .executeTakeFirst();
  }

  async sizeOf(batchId: string, state: BatchGroupState): Promise<{ groups: number; resolved: number }> {
    const { groups, resolved } = await this.db
      .selectFrom('batch_groups')
      .select((select) => [
        select.fn.countAll<number>().as('groups'),
        select.fn.coalesce(select.fn.sum<number>('resolved'), sql<number>`0`).as('resolved'),
      ])
      .where('batch_id', '=', batchId)
      .where('state', '=', state)
      .executeTakeFirstOrThrow();
    return { groups: Number(groups), resolved: Number(resolved) };
  }

  async countGroups(batchId: string): Promise<BatchGroupTotals[]> {
    const { rows } = await sql<BatchGroupTotals>`
      select state, reason, sum(groups) as groups, sum(sessions) as sessions, sum(resolved) as resolved,
        sum(sampled_tokens) as sampled_tokens
      from batch_group_changes where batch_id = ${batchId}
      group by state, reason having sum(groups) <> 0`.execute(this.db);
    return rows.map(({ state, reason, groups, sessions, resolved, sampled_tokens }) => ({
      state,
      reason,
      groups: Number(groups),
      sessions: Number(sessions),
      resolved: Number(resolved),
      sampled_tokens: Number(sampled_tokens),
    }));
  }

  async foldChanges(batchId: string): Promise<number> {
    const changes = await this.db
      .deleteFrom('batch_group_changes')
      .where('batch_id', '=', batchId)
      .returningAll()
      .execute();
    const sums = new Map<string, BatchGroupChangeRow>();
    for (const change of changes) {
      const key = `${change.state}/${change.reason}`;
      const sum = sums.get(key);
      sums.set(key, sum === undefined ? change : sumOf(sum, change));
    }
    const kept = [...sums.values()].filter(({ groups }) => groups !== 0);
    if (kept.length > 0) await this.db.insertInto('batch_group_changes').values(kept).execute();
    return changes.length;
  }

  async newestRejections(batchId: string, limit: number): Promise<ReadonlyMap<string, number>> {
    const newestIn = (state: BatchGroupState) => sql`
      select max(group_no) as group_no from batch_groups where batch_id = ${batchId} and state = ${state}`;
    const accepted = sql.join((['ready', 'handed', 'expired'] as const).map(newestIn), sql` union all `);
    const { rows } = await sql<{ reason: string | null; count: number }>`
      select reason, count(*) as count from (
        select reason from batch_groups
        where batch_id = ${batchId} and state = 'rejected'
          and group_no > (select coalesce(max(group_no), -1) from (${accepted}) as accepted)
        order by group_no desc limit ${limit}
      ) as newest group by reason order by reason`.execute(this.db);
    return new Map(rows.map(({ reason, count }) => [reason ?? 'unknown', Number(count)]));
  }

  async counts(batchId: string, maxRejections: number): Promise<BatchCounts> {
    const [groups, unsampledRows, newestRejections] = await settleAll([
      this.countGroups(batchId),
      this.countUnsampledRows(batchId),
      this.newestRejections(batchId, maxRejections),
    ]);
    return { groups, unsampledRows, newestRejections };
  }

  async queuedSessions(batchId: string): Promise<number> {
    // SQLite reads the tables of a cross join in the written order: the few running groups first, not all queued sessions.
    const { rows } = await sql<{ count: number }>`
      select count(*) as count from batch_groups cross join sessions
      where batch_groups.batch_id = ${batchId} and batch_groups.state = 'running'
        and sessions.task_id = batch_groups.task_id and sessions.status = 'QUEUED'`.execute(this.db);
    return Number(rows[0]?.count ?? 0);
  }

  async removeEnded(endedBeforeMs: number, limit: number): Promise<number> {
    const ended = await this.db
      .selectFrom('batch_streams')
      .select('batch_id')
      .where('ended_ms', 'is not', null)
      .where('ended_ms', '<', endedBeforeMs)
      .limit(limit)
      .execute();
    const ids = this.flavor.texts(ended.map(({ batch_id }) => batch_id));
    for (const table of [
      'batch_groups',
      'batch_group_changes',
      'batch_plans',
      'batch_rows',
      'batch_streams',
    ] as const) {
      await sql`delete from ${sql.table(table)} where batch_id in ${ids}`.execute(this.db);
    }
    return ended.length;
  }
}

function sumOf(one: BatchGroupChangeRow, other: BatchGroupChangeRow): BatchGroupChangeRow {
  return {
    ...one,
    groups: one.groups + other.groups,
    sessions: one.sessions + other.sessions,
    resolved: one.resolved + other.resolved,
    sampled_tokens: one.sampled_tokens + other.sampled_tokens,
  };
}
