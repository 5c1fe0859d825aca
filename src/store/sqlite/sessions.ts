import { sql } from 'kysely';
import type { SessionStatus } from '../../schema/index.ts';
import type { NewSession, SessionPatch, SessionRow } from '../rows.ts';
import type { ClaimRequest, SessionTable } from '../store.ts';
import type { Connection } from './tables.ts';

/** Lists travel as one JSON parameter, so that a statement has the same text, and is compiled once, for every length. */
const each = (values: readonly unknown[]) => sql<string>`(select value from json_each(${JSON.stringify(values)}))`;

export class SqliteSessions implements SessionTable {
  private readonly db: Connection;

  constructor(db: Connection) {
    this.db = db;
  }

  async insert(
    shared: Pick<
      SessionRow,
      'task_id' | 'priority' | 'max_attempts' | 'not_before_ms' | 'queued_since_ms' | 'created_at'
    >,
    sessions: readonly NewSession[],
  ): Promise<void> {
    const list = JSON.stringify(sessions.map((session) => [session.session_id, session.sample_index]));
    await sql`
      insert into sessions (session_id, sample_index, task_id, status, priority, attempt, max_attempts, epoch,
        not_before_ms, queued_since_ms, turns, sampled_tokens, cancel_requested, created_at, updated_at)
      select value ->> 0, value ->> 1, ${shared.task_id}, 'QUEUED', ${shared.priority}, 1, ${shared.max_attempts}, 1,
        ${shared.not_before_ms}, ${shared.queued_since_ms}, 0, 0, 0, ${shared.created_at}, ${shared.created_at}
      from json_each(${list}) order by key`.execute(this.db);
  }

  get(sessionId: string): Promise<SessionRow | undefined> {
    return this.db.selectFrom('sessions').selectAll().where('session_id', '=', sessionId).executeTakeFirst();
  }

  getMany(sessionIds: readonly string[]): Promise<SessionRow[]> {
    return this.db.selectFrom('sessions').selectAll().where('session_id', 'in', each(sessionIds)).execute();
  }

  ofTask(taskId: string): Promise<SessionRow[]> {
    return this.db.selectFrom('sessions').selectAll().where('task_id', '=', taskId).orderBy('sample_index').execute();
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

  async claim(request: ClaimRequest): Promise<SessionRow[]> {
    const due = this.db
      .selectFrom('sessions')
      .select('queue_order')
      // Literals, not parameters: SQLite uses the partial index on queued sessions only then.
      .where(sql<boolean>`status = 'QUEUED'`)
      .where('not_before_ms', '<=', request.nowMs)
      .orderBy('priority', 'desc')
      .orderBy('queue_order')
      .limit(request.limit);
    const claimed = await this.db
      .updateTable('sessions')
      .set({
        status: 'LEASED',
        node_id: request.nodeId,
        lease_expires_ms: request.leaseExpiresMs,
        updated_at: request.updatedAt,
      })
      .where('queue_order', 'in', due)
      .returningAll()
      .execute();
    return claimed.sort((a, b) => b.priority - a.priority || a.queue_order - b.queue_order);
  }

  async update(sessionId: string, patch: SessionPatch): Promise<void> {
    await this.db.updateTable('sessions').set(patch).where('session_id', '=', sessionId).execute();
  }

  async renew(sessionIds: readonly string[], leaseExpiresMs: number): Promise<void> {
    await this.db
      .updateTable('sessions')
      .set({ lease_expires_ms: leaseExpiresMs })
      .where('session_id', 'in', each(sessionIds))
      .execute();
  }

  expired(nowMs: number, limit: number): Promise<SessionRow[]> {
    return this.db
      .selectFrom('sessions')
      .selectAll()
      .where('lease_expires_ms', 'is not', null)
      .where('lease_expires_ms', '<=', nowMs)
      .orderBy('lease_expires_ms')
      .limit(limit)
      .execute();
  }

  cancelPending(nodeId: string): Promise<SessionRow[]> {
    return this.db
      .selectFrom('sessions')
      .selectAll()
      .where(sql<boolean>`cancel_requested = 1`)
      .where('node_id', '=', nodeId)
      .execute();
  }

  async leasedByNode(): Promise<ReadonlyMap<string, number>> {
    const rows = await this.db
      .selectFrom('sessions')
      .select((select) => ['node_id', select.fn.countAll<number>().as('count')])
      .where('lease_expires_ms', 'is not', null)
      .groupBy('node_id')
      .execute();
    return new Map(rows.flatMap((row) => (row.node_id === null ? [] : [[row.node_id, row.count]])));
  }

  async countByStatus(): Promise<ReadonlyMap<SessionStatus, number>> {
    const rows = await this.db
      .selectFrom('sessions')
      .select((select) => ['status', select.fn.countAll<number>().as('count')])
      .groupBy('status')
      .execute();
    return new Map(rows.map((row) => [row.status, row.count]));
  }
}
