import { OUTCOMES } from '@floe-rl/core/protocol';
import type { Outcome, SessionProgress, SessionStatus, UnusableReason } from '@floe-rl/core/schema';
import { type RawBuilder, sql } from 'kysely';
import type { NewSession, QueuedSessions, SessionPatch, SessionRow, TrainerLoad } from '../rows.ts';
import {
  type ClaimRequest,
  firstFitting,
  type HeldSessions,
  type NewSessions,
  type NodeMemory,
  OVERDUE_CANDIDATES,
  OVERDUE_FACTOR,
  type Page,
  type SessionTable,
} from '../store.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';
import { FOLDED } from './fact-totals.ts';

/**
 * SQL condition for queued sessions. The status is a literal and not a parameter, because otherwise SQLite would not use its partial
 * indexes.
 */
const QUEUED = sql<boolean>`status = 'QUEUED'`;

export class SqlSessions implements SessionTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async insert(shared: NewSessions, sessions: readonly NewSession[]): Promise<void> {
    await sql`
      insert into sessions (session_id, sample_index, task_id, trainer, status, priority, attempt, max_attempts, epoch,
        not_before_ms, queued_since_ms, expected_ms, memory_mb, avoid_until_ms, turns, sampled_tokens, cancel_requested, created_at,
        updated_at)
      select session_id, sample_index, ${shared.task_id}, ${shared.trainer}, 'QUEUED', ${shared.priority}, 1,
        ${shared.max_attempts}, 1, ${shared.not_before_ms}, ${shared.queued_since_ms}, ${shared.expected_ms}, ${shared.memory_mb}, 0, 0, 0, 0,
        ${shared.created_at}, ${shared.created_at}
      from ${this.flavor.newSessions(sessions)} as fresh order by ordinal`.execute(this.db);
  }

  get(sessionId: string): Promise<SessionRow | undefined> {
    return this.db.selectFrom('sessions').selectAll().where('session_id', '=', sessionId).executeTakeFirst();
  }

  async lock(sessionId: string): Promise<SessionRow | undefined> {
    return (await this.select(sql`where session_id = ${sessionId} ${this.flavor.forUpdate}`))[0];
  }

  getMany(sessionIds: readonly string[]): Promise<SessionRow[]> {
    return this.select(sql`where session_id in ${this.flavor.texts(sessionIds)}`);
  }

  lockMany(sessionIds: readonly string[]): Promise<SessionRow[]> {
    return this.select(
      sql`where session_id in ${this.flavor.texts(sessionIds)} order by session_id ${this.flavor.forUpdate}`,
    );
  }

  ofTask(taskId: string, page?: Page): Promise<SessionRow[]> {
    const all = this.db.selectFrom('sessions').selectAll().where('task_id', '=', taskId).orderBy('sample_index');
    return (page === undefined ? all : all.where('sample_index', '>', page.after).limit(page.limit)).execute();
  }

  async lockOpen(taskId: string, limit: number): Promise<SessionRow[]> {
    const { skipLocked } = this.flavor;
    // Leased and queued sessions are selected by two statements, so that each can use an index: a task may have 100,000 sessions, but few
    // sessions of all tasks are leased. The expression `task_id || ''` makes the planner use the index of leased sessions instead of the
    // index by task.
    const leased = await this.select(sql`
      where session_id in (select session_id from sessions where lease_expires_ms is not null and task_id || '' = ${taskId})
        and lease_expires_ms is not null
      order by session_id limit ${limit} ${skipLocked}`);
    if (leased.length === limit) return leased;
    const queued = await this.select(sql`
      where task_id = ${taskId} and ${QUEUED} order by session_id limit ${limit - leased.length} ${skipLocked}`);
    return [...leased, ...queued];
  }

  async idsOfTask(taskId: string): Promise<string[]> {
    const rows = await this.db
      .selectFrom('sessions')
      .select('session_id')
      .where('task_id', '=', taskId)
      .orderBy('sample_index')
      .execute();
    return rows.map((row) => row.session_id);
  }

  async unusable(taskId: string): Promise<ReadonlyMap<UnusableReason, number>> {
    const rows = await this.db
      .selectFrom('sessions')
      .select((select) => ['unusable', select.fn.countAll<number>().as('count')])
      .where('task_id', '=', taskId)
      .where('unusable', 'is not', null)
      .groupBy('unusable')
      .execute();
    return new Map(rows.flatMap((row) => (row.unusable === null ? [] : [[row.unusable, row.count]])));
  }

  async claim(request: ClaimRequest): Promise<SessionRow[]> {
    const { memory = null } = request;
    const chosen = memory === null ? sql`select queue_order from due` : await this.fitting(request, memory);
    const { rows } = await sql<SessionRow>`
      ${memory === null ? sql`with ${this.dueSessions(request)}` : sql``}
      update sessions set status = 'LEASED', node_id = ${request.nodeId},
        lease_expires_ms = ${request.leaseExpiresMs}, updated_at = ${request.updatedAt}
      where queue_order in (${chosen})
      returning *`.execute(this.db);
    return rows.sort(inClaimOrder(request.order));
  }

  async hasDue(request: ClaimRequest): Promise<boolean> {
    const { rows } = await sql`
      with ${this.dueSessions({ ...request, limit: 1 })} select queue_order from due`.execute(this.db);
    return rows.length > 0;
  }

  /** Locks the sessions to claim that fit into the free memory of the node, and returns their queue orders as SQL. */
  private async fitting(request: ClaimRequest, { freeMb }: NodeMemory): Promise<RawBuilder<unknown>> {
    const { rows } = await sql<Pick<SessionRow, 'queue_order' | 'priority' | 'expected_ms' | 'memory_mb'>>`
      with ${this.dueSessions(request)}
      select queue_order, priority, expected_ms, memory_mb from due`.execute(this.db);
    const fitting = firstFitting(rows.sort(inClaimOrder(request.order)), freeMb);
    return fitting.length === 0 ? sql`null` : sql.join(fitting.map(({ queue_order: place }) => sql`${place}`));
  }

  /** Returns the SQL of the common table expression `due`, which selects the sessions to claim. */
  private dueSessions({ trainer, nodeId, nowMs, order, limit, memory = null }: ClaimRequest): RawBuilder<unknown> {
    const claimable = sql`
      from sessions where ${QUEUED} and trainer = ${trainer} and not_before_ms <= ${nowMs}
        and (avoid_node is null or avoid_node <> ${nodeId} or avoid_until_ms <= ${nowMs})
        ${memory === null ? sql`` : sql`and memory_mb <= ${memory.totalMb}`}`;
    const { skipLocked } = this.flavor;
    if (order === 'overdue') {
      // The expression `status || ''` keeps PostgreSQL from reading the whole queue for each row of `front`. It would do so when its
      // statistics are older than the queue and it expects an empty one.
      return sql`
        front as (
          select queue_order, priority, queued_since_ms, expected_ms ${claimable}
          order by priority desc, queue_order limit ${OVERDUE_CANDIDATES}
        ),
        due as (
          select queue_order, priority, expected_ms, memory_mb from sessions
          where status || '' = 'QUEUED' and queue_order in (
            select queue_order from front
            where queued_since_ms + ${OVERDUE_FACTOR} * expected_ms < ${nowMs}
              and priority = (select max(priority) from front)
          )
          order by queue_order limit ${limit} ${skipLocked}
        )`;
    }
    const by = order === 'fifo' ? sql`queue_order` : sql`expected_ms desc, queue_order`;
    return sql`
      due as (select queue_order, priority, expected_ms, memory_mb ${claimable} order by priority desc, ${by} limit ${limit} ${skipLocked})`;
  }

  async update(sessionId: string, patch: SessionPatch): Promise<void> {
    await this.db.updateTable('sessions').set(patch).where('session_id', '=', sessionId).execute();
  }

  async renew(sessionIds: readonly string[], leaseExpiresMs: number): Promise<void> {
    if (sessionIds.length === 0) return;
    await this.db
      .updateTable('sessions')
      .set({ lease_expires_ms: leaseExpiresMs })
      .where('session_id', 'in', this.flavor.texts(sessionIds))
      .execute();
  }

  async differing(nodeId: string, reported: readonly SessionProgress[], freshUntilMs: number): Promise<string[]> {
    const { rows } = await sql<{ session_id: string }>`
      select reported.session_id from ${this.flavor.progress(reported)} as reported
      where not exists (
        select 1 from sessions as stored
        where stored.session_id = reported.session_id and stored.epoch = reported.epoch and stored.node_id = ${nodeId}
          and stored.lease_expires_ms >= ${freshUntilMs} and stored.status = reported.status and stored.turns = reported.turns
          and stored.sampled_tokens = reported.sampled_tokens
      )`.execute(this.db);
    return rows.map((row) => row.session_id);
  }

  async recordProgress(reported: readonly SessionProgress[], updatedAt: string): Promise<void> {
    await sql`
      update sessions set status = reported.status, turns = reported.turns, sampled_tokens = reported.sampled_tokens,
        updated_at = ${updatedAt}
      from ${this.flavor.progress(reported)} as reported
      where sessions.session_id = reported.session_id`.execute(this.db);
  }

  lockExpired(nowMs: number, limit: number): Promise<SessionRow[]> {
    return this.select(sql`
      where lease_expires_ms is not null and lease_expires_ms <= ${nowMs}
      order by lease_expires_ms limit ${limit} ${this.flavor.skipLocked}`);
  }

  lockHeldBy(nodeId: string): Promise<SessionRow[]> {
    return this.select(sql`
      where lease_expires_ms is not null and node_id = ${nodeId} order by session_id ${this.flavor.forUpdate}`);
  }

  cancelPending(nodeId: string): Promise<SessionRow[]> {
    return this.select(sql`where cancel_requested = 1 and node_id = ${nodeId}`);
  }

  async leasedByNode(): Promise<ReadonlyMap<string, HeldSessions>> {
    const rows = await this.db
      .selectFrom('sessions')
      .select((select) => [
        'node_id',
        select.fn.countAll<number>().as('count'),
        select.fn.sum<number>('memory_mb').as('memoryMb'),
      ])
      .where('lease_expires_ms', 'is not', null)
      .groupBy('node_id')
      .execute();
    return new Map(rows.flatMap((row) => (row.node_id === null ? [] : [[row.node_id, held(row)]])));
  }

  leased(taskId: string | null, limit: number): Promise<SessionRow[]> {
    const ofTask = taskId === null ? sql`` : sql`and task_id = ${taskId}`;
    return this.select(sql`where lease_expires_ms is not null ${ofTask} order by queue_order limit ${limit}`);
  }

  async heldBy(nodeId: string): Promise<HeldSessions> {
    const row = await this.db
      .selectFrom('sessions')
      .select((select) => [
        select.fn.countAll<number>().as('count'),
        select.fn.sum<number | null>('memory_mb').as('memoryMb'),
      ])
      .where('lease_expires_ms', 'is not', null)
      .where('node_id', '=', nodeId)
      .executeTakeFirstOrThrow();
    return held(row);
  }

  queued(): Promise<QueuedSessions[]> {
    return this.db
      .selectFrom('sessions')
      .select((select) => ['trainer', 'memory_mb', select.fn.countAll<number>().as('sessions')])
      .where(QUEUED)
      .groupBy(['trainer', 'memory_mb'])
      .orderBy('trainer')
      .execute();
  }

  async countStarted(): Promise<ReadonlyMap<SessionStatus, number>> {
    // Sessions that have ended are counted by the sums of their facts, because counting their rows would read all of them.
    const { rows } = await sql<{ status: SessionStatus | null; outcome: Outcome | null; count: number }>`
      select status, null as outcome, count(*) as count from sessions where lease_expires_ms is not null group by status
      union all select null, outcome, sum(sessions) from session_totals group by outcome
      union all select null, outcome, count(*) from session_facts where fact_no > ${FOLDED} group by outcome`.execute(
      this.db,
    );
    const counts = new Map<SessionStatus, number>();
    for (const { status, outcome, count } of rows) {
      const name = outcome === null ? status : OUTCOMES[outcome].status;
      if (name !== null) counts.set(name, (counts.get(name) ?? 0) + Number(count));
    }
    return counts;
  }

  async loads(): Promise<TrainerLoad[]> {
    const { rows } = await sql<TrainerLoad>`
      select trainer, sum(live) as live, sum(uncollected_results) as uncollected_results,
        sum(uncollected_bytes) as uncollected_bytes
      from (
        select trainer, count(*) as live, 0 as uncollected_results, 0 as uncollected_bytes
          from sessions where lease_expires_ms is not null group by trainer
        union all select uncollected.trainer, 0, count(*), sum(bytes)
          from uncollected join tasks on tasks.task_id = uncollected.task_id
          where tasks.ended_ms is not null or tasks.callback_url is null
            and not exists (select 1 from aliases where aliases.task_id = tasks.task_id)
          group by uncollected.trainer
      ) as parts group by trainer order by trainer`.execute(this.db);
    return rows;
  }

  async waitingTrainers(nowMs: number): Promise<string[]> {
    const { byTrainer } = this.flavor;
    // The recursion jumps in the index from one trainer to the next, because a long queue has only few trainers. PostgreSQL must use the
    // index even when its statistics are older than the queue and it expects an empty one. It would then read the whole queue for
    // `min(trainer)`, but not for the first row in the order of the index. The last condition does not use `exists`, because PostgreSQL
    // would convert it to a join that reads the whole queue.
    const first = sql`order by trainer, priority desc, queue_order limit 1`;
    const { rows } = await sql<{ trainer: string }>`
      with recursive waiting (trainer) as (
        select (select trainer from sessions ${byTrainer} where ${QUEUED} ${first})
        union all
        select (select trainer from sessions ${byTrainer} where ${QUEUED} and sessions.trainer > waiting.trainer ${first})
        from waiting where waiting.trainer is not null
      )
      select trainer from waiting where trainer is not null and (
        select 1 from sessions ${byTrainer}
        where ${QUEUED} and sessions.trainer = waiting.trainer and sessions.not_before_ms <= ${nowMs} limit 1
      ) = 1`.execute(this.db);
    return rows.map((row) => row.trainer);
  }

  private async select(rest: RawBuilder<unknown>): Promise<SessionRow[]> {
    return (await sql<SessionRow>`select * from sessions ${rest}`.execute(this.db)).rows;
  }
}

/** Returns the comparison function for the order in which a claim takes sessions. */
function inClaimOrder(order: ClaimRequest['order']) {
  type Place = Pick<SessionRow, 'priority' | 'expected_ms' | 'queue_order'>;
  const byDuration = (a: Place, b: Place): number => (order === 'longest_first' ? b.expected_ms - a.expected_ms : 0);
  return (a: Place, b: Place): number => b.priority - a.priority || byDuration(a, b) || a.queue_order - b.queue_order;
}

function held({ count, memoryMb }: { readonly count: number; readonly memoryMb: number | null }): HeldSessions {
  return { count, memoryMb: Number(memoryMb ?? 0) };
}
