import { FloeError } from '@floe-rl/core';
import type { TaskState } from '@floe-rl/core/schema';
import type { EndedCounts, TaskPatch, TaskRow } from '#server/store/rows';
import type { Removed, TaskTable } from '#server/store/store';
import { ALL, type MemoryState, type StoredTask } from './state.ts';

export class MemoryTasks implements TaskTable {
  private readonly state: MemoryState;

  constructor(state: MemoryState) {
    this.state = state;
  }

  /** Does nothing. A lock against adding the same task twice is not needed, because transactions run one after the other. */
  async reserve(): Promise<void> {}

  async insert(row: TaskRow): Promise<void> {
    const byKey = row.idempotency_key === null ? undefined : await this.findByKey(row.idempotency_key);
    const taken = this.state.tasks.get(row.task_id) ?? byKey;
    if (taken !== undefined) {
      throw new FloeError('conflict', `task ${taken.task_id} already has this id or idempotency key`);
    }
    this.state.tasks.put(row.task_id, { ...row, order_no: this.state.next('task') });
  }

  async get(taskId: string): Promise<TaskRow | undefined> {
    return this.state.tasks.get(taskId);
  }

  async lock(taskId: string): Promise<TaskRow | undefined> {
    return this.state.tasks.get(taskId);
  }

  async getMany(taskIds: readonly string[]): Promise<TaskRow[]> {
    return [...new Set(taskIds)].flatMap((id) => this.state.tasks.get(id) ?? []);
  }

  async findByKey(idempotencyKey: string): Promise<TaskRow | undefined> {
    return this.state.tasksByKey.of(idempotencyKey)[0];
  }

  async list({ status, limit }: { status: TaskState | null; limit: number }): Promise<TaskRow[]> {
    return this.state.tasks
      .where((row) => status === null || row.status === status)
      .sort((a, b) => b.order_no - a.order_no)
      .slice(0, limit);
  }

  async update(taskId: string, patch: TaskPatch): Promise<void> {
    this.state.tasks.patch(taskId, patch);
  }

  async addEnded(taskId: string, added: EndedCounts): Promise<TaskRow> {
    const row = this.state.tasks.get(taskId);
    if (row === undefined) throw new Error(`task ${taskId} is not stored`);
    const next: StoredTask = {
      ...row,
      completed_sessions: row.completed_sessions + added.sessions,
      reward_sum: row.reward_sum + added.rewardSum,
      reward_count: row.reward_count + added.rewardCount,
      usable_sessions: row.usable_sessions + added.usable,
      baseline_sessions: row.baseline_sessions + added.inBaseline,
    };
    this.state.tasks.put(taskId, next);
    return next;
  }

  async overdue(nowMs: number, limit: number): Promise<TaskRow[]> {
    return this.state.tasksWithDeadline
      .of(ALL)
      .filter((row) => (row.deadline_ms ?? 0) <= nowMs)
      .slice(0, limit);
  }

  async unfinishedCancelled(limit: number): Promise<TaskRow[]> {
    return this.state.unfinishedCancelled.of(ALL).slice(0, limit);
  }

  async countByStatus(): Promise<ReadonlyMap<TaskState, number>> {
    const counts = new Map<TaskState, number>();
    for (const { status } of this.state.tasks.values()) counts.set(status, (counts.get(status) ?? 0) + 1);
    return counts;
  }

  /** Does nothing, because the tasks themselves are counted. */
  async foldCounts(): Promise<void> {}

  async removeEnded(endedBeforeMs: number, limit: number): Promise<Removed> {
    const { state } = this;
    const waiting = new Set([
      ...state.uncollected.all().map((row) => row.task_id),
      ...state.callbacks.where((row) => row.delivered_at === null).map((row) => row.task_id),
    ]);
    const ended = state.tasks
      .where((row) => row.ended_ms !== null && row.ended_ms < endedBeforeMs && !waiting.has(row.task_id))
      .sort((a, b) => (a.ended_ms ?? 0) - (b.ended_ms ?? 0));
    const removed = { tasks: 0, sessions: 0 };
    for (const { task_id } of ended) {
      const sessions = state.sessionsByTask.of(task_id).map((row) => row.session_id);
      const left = limit - removed.sessions;
      if (removed.tasks > 0 && sessions.length > left) break;
      for (const id of sessions.slice(0, left)) this.removeSession(id);
      removed.sessions += Math.min(sessions.length, left);
      if (sessions.length > left) break;
      this.removeTask(task_id);
      removed.tasks++;
    }
    return removed;
  }

  private removeSession(sessionId: string): void {
    const { state } = this;
    for (const { epoch } of state.deliveriesBySession.of(sessionId)) {
      state.deliveries.delete(`${sessionId}/${epoch}`);
    }
    state.results.delete(sessionId);
    state.sessions.delete(sessionId);
    state.facts.delete(sessionId);
  }

  private removeTask(taskId: string): void {
    const { state } = this;
    state.callbacks.delete(taskId);
    for (const { api, alias } of state.aliases.where((row) => row.task_id === taskId))
      state.aliases.delete(`${api}/${alias}`);
    state.tasks.delete(taskId);
  }
}
