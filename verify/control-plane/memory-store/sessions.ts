import { isTerminal } from '@floe-rl/core/protocol';
import type { SessionProgress, SessionStatus, UnusableReason } from '@floe-rl/core/schema';
import type { NewSession, QueuedSessions, SessionPatch, SessionRow, TrainerLoad } from '#server/store/rows';
import {
  type ClaimRequest,
  firstFitting,
  type HeldSessions,
  type NewSessions,
  OVERDUE_CANDIDATES,
  OVERDUE_FACTOR,
  type Page,
  type SessionTable,
} from '#server/store/store';
import type { MemoryState } from './state.ts';

export class MemorySessions implements SessionTable {
  private readonly state: MemoryState;

  constructor(state: MemoryState) {
    this.state = state;
  }

  async insert(shared: NewSessions, sessions: readonly NewSession[]): Promise<void> {
    for (const { session_id, sample_index } of sessions) {
      if (this.state.sessions.get(session_id) !== undefined) throw new Error(`session ${session_id} is already stored`);
      const row: SessionRow = {
        ...shared,
        session_id,
        sample_index,
        status: 'QUEUED',
        queue_order: this.state.next('session'),
        attempt: 1,
        epoch: 1,
        node_id: null,
        lease_expires_ms: null,
        avoid_node: null,
        avoid_until_ms: 0,
        turns: 0,
        sampled_tokens: 0,
        cancel_requested: 0,
        unusable: null,
        summary: null,
        updated_at: shared.created_at,
      };
      this.state.sessions.put(session_id, row);
    }
  }

  async get(sessionId: string): Promise<SessionRow | undefined> {
    return this.state.sessions.get(sessionId);
  }

  async lock(sessionId: string): Promise<SessionRow | undefined> {
    return this.state.sessions.get(sessionId);
  }

  async getMany(sessionIds: readonly string[]): Promise<SessionRow[]> {
    return [...new Set(sessionIds)].flatMap((id) => this.state.sessions.get(id) ?? []);
  }

  async lockMany(sessionIds: readonly string[]): Promise<SessionRow[]> {
    return (await this.getMany(sessionIds)).sort(byId);
  }

  async ofTask(taskId: string, page?: Page): Promise<SessionRow[]> {
    return this.state.sessionsByTask
      .of(taskId)
      .filter((row) => row.sample_index > (page?.after ?? -1))
      .sort((a, b) => a.sample_index - b.sample_index)
      .slice(0, page?.limit);
  }

  async lockOpen(taskId: string, limit: number): Promise<SessionRow[]> {
    const unleased = (row: SessionRow): number => (row.lease_expires_ms === null ? 1 : 0);
    return this.state.sessionsByTask
      .of(taskId)
      .filter((row) => !isTerminal(row.status))
      .sort((a, b) => unleased(a) - unleased(b) || byId(a, b))
      .slice(0, limit);
  }

  async idsOfTask(taskId: string): Promise<string[]> {
    return (await this.ofTask(taskId)).map((row) => row.session_id);
  }

  async unusable(taskId: string): Promise<ReadonlyMap<UnusableReason, number>> {
    const counts = new Map<UnusableReason, number>();
    for (const { unusable } of this.state.sessionsByTask.of(taskId)) {
      if (unusable !== null) counts.set(unusable, (counts.get(unusable) ?? 0) + 1);
    }
    return counts;
  }

  async claim(request: ClaimRequest): Promise<SessionRow[]> {
    const due = this.dueSessions(request);
    const claimed = request.memory == null ? due : firstFitting(due, request.memory.freeMb);
    return claimed.map((row) => {
      const leased: SessionRow = {
        ...row,
        status: 'LEASED',
        node_id: request.nodeId,
        lease_expires_ms: request.leaseExpiresMs,
        updated_at: request.updatedAt,
      };
      this.state.sessions.put(row.session_id, leased);
      return leased;
    });
  }

  async hasDue(request: ClaimRequest): Promise<boolean> {
    return this.dueSessions({ ...request, limit: 1 }).length > 0;
  }

  private dueSessions({ nowMs, nodeId, trainer, order, limit, memory }: ClaimRequest): SessionRow[] {
    const { queue, longestQueue } = this.state;
    const due: SessionRow[] = [];
    const wanted = order === 'overdue' ? OVERDUE_CANDIDATES : limit;
    for (const row of (order === 'longest_first' ? longestQueue : queue).of(trainer)) {
      if (due.length >= wanted) break;
      const isDue =
        row.not_before_ms <= nowMs &&
        row.memory_mb <= (memory?.totalMb ?? Number.POSITIVE_INFINITY) &&
        (row.avoid_node === null || row.avoid_node !== nodeId || row.avoid_until_ms <= nowMs);
      if (isDue) due.push(row);
    }
    if (order !== 'overdue') return due;
    return due
      .filter((row, _, [first]) => row.priority === first?.priority)
      .filter((row) => row.queued_since_ms + OVERDUE_FACTOR * row.expected_ms < nowMs)
      .slice(0, limit);
  }

  async update(sessionId: string, patch: SessionPatch): Promise<void> {
    this.state.sessions.patch(sessionId, patch);
  }

  async renew(sessionIds: readonly string[], leaseExpiresMs: number): Promise<void> {
    for (const id of sessionIds) this.state.sessions.patch(id, { lease_expires_ms: leaseExpiresMs });
  }

  async differing(nodeId: string, reported: readonly SessionProgress[], freshUntilMs: number): Promise<string[]> {
    const isStored = ({ session_id, epoch, status, turns, sampled_tokens }: SessionProgress): boolean => {
      const row = this.state.sessions.get(session_id);
      const held = row?.node_id === nodeId && (row.lease_expires_ms ?? Number.NEGATIVE_INFINITY) >= freshUntilMs;
      return (
        held &&
        row.epoch === epoch &&
        row.status === status &&
        row.turns === turns &&
        row.sampled_tokens === sampled_tokens
      );
    };
    return reported.filter((one) => !isStored(one)).map((one) => one.session_id);
  }

  async recordProgress(reported: readonly SessionProgress[], updatedAt: string): Promise<void> {
    for (const { session_id, status, turns, sampled_tokens } of reported) {
      this.state.sessions.patch(session_id, { status, turns, sampled_tokens, updated_at: updatedAt });
    }
  }

  async lockExpired(nowMs: number, limit: number): Promise<SessionRow[]> {
    const expires = (row: SessionRow): number => row.lease_expires_ms ?? Number.POSITIVE_INFINITY;
    return this.state.held
      .all()
      .filter((row) => expires(row) <= nowMs)
      .sort((a, b) => expires(a) - expires(b))
      .slice(0, limit);
  }

  async lockHeldBy(nodeId: string): Promise<SessionRow[]> {
    return this.state.held.of(nodeId).sort(byId);
  }

  async cancelPending(nodeId: string): Promise<SessionRow[]> {
    return this.state.cancelPending.of(nodeId);
  }

  async leasedByNode(): Promise<ReadonlyMap<string, HeldSessions>> {
    const nodeIds = this.state.held.values();
    return new Map(await Promise.all([...nodeIds].map(async (id) => [id, await this.heldBy(id)] as const)));
  }

  async leased(taskId: string | null, limit: number): Promise<SessionRow[]> {
    const isWanted = (row: SessionRow): boolean =>
      row.lease_expires_ms !== null && (taskId === null || row.task_id === taskId);
    return this.state.sessions
      .where(isWanted)
      .sort((a, b) => a.queue_order - b.queue_order)
      .slice(0, limit);
  }

  async heldBy(nodeId: string): Promise<HeldSessions> {
    const rows = this.state.held.of(nodeId);
    return { count: rows.length, memoryMb: rows.reduce((sum, row) => sum + row.memory_mb, 0) };
  }

  async queued(): Promise<QueuedSessions[]> {
    return [...this.state.queue.values()].sort().flatMap((trainer) => {
      const counts = new Map<number, number>();
      for (const { memory_mb: memory } of this.state.queue.of(trainer))
        counts.set(memory, (counts.get(memory) ?? 0) + 1);
      return [...counts].map(([memory, sessions]) => ({ trainer, memory_mb: memory, sessions }));
    });
  }

  async countStarted(): Promise<ReadonlyMap<SessionStatus, number>> {
    const counts = new Map<SessionStatus, number>();
    for (const { status } of this.state.sessions.values()) {
      if (status !== 'QUEUED') counts.set(status, (counts.get(status) ?? 0) + 1);
    }
    return counts;
  }

  async loads(): Promise<TrainerLoad[]> {
    const loads = new Map<string, { -readonly [Key in keyof TrainerLoad]: TrainerLoad[Key] }>();
    const of = (trainer: string) => {
      const known = loads.get(trainer);
      const load = known ?? { trainer, live: 0, uncollected_results: 0, uncollected_bytes: 0 };
      if (known === undefined) loads.set(trainer, load);
      return load;
    };
    for (const trainer of this.state.leasedByTrainer.values()) {
      of(trainer).live = this.state.leasedByTrainer.size(trainer);
    }
    for (const row of this.state.uncollected.all()) {
      const task = this.state.tasks.get(row.task_id);
      const hasAlias = (): boolean => this.state.aliases.where((alias) => alias.task_id === row.task_id).length > 0;
      const promised = task?.ended_ms === null && (task.callback_url !== null || hasAlias());
      if (promised) continue;
      const load = of(row.trainer);
      load.uncollected_results++;
      load.uncollected_bytes += row.trajectory_bytes + row.completions_bytes + row.artifacts_bytes;
    }
    return [...loads.values()].sort((a, b) => (a.trainer < b.trainer ? -1 : 1));
  }

  async waitingTrainers(nowMs: number): Promise<string[]> {
    const { queue } = this.state;
    return [...queue.values()].filter((trainer) => queue.of(trainer).some((row) => row.not_before_ms <= nowMs));
  }
}

function byId(a: SessionRow, b: SessionRow): number {
  return a.session_id < b.session_id ? -1 : a.session_id > b.session_id ? 1 : 0;
}
