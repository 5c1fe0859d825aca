import { isoNow } from '../../core/clock.ts';
import type { GroupReport, SessionError, TaskRequest, TaskState, UnusableReason } from '../../schema/index.ts';
import type { EndedCounts, SessionRow, StoreTables, TaskRow } from '../../store/index.ts';
import type { Effects, RolloutContext } from '../context.ts';
import { closeSession, NO_BLOBS } from '../sessions/closings.ts';
import { serverSummary } from '../sessions/summary.ts';

/** Sessions cancelled by one transaction: about 30 ms of work, so that nothing else waits for long. */
export const CANCEL_BATCH = 200;

const NOTHING_GAINED: EndedCounts = { sessions: 0, rewardSum: 0, rewardCount: 0, usable: 0, inBaseline: 0 };

/** The stored request. It was parsed before it was stored, so this does not check it again. */
export function requestIn(task: Pick<TaskRow, 'request'>): TaskRequest {
  return JSON.parse(task.request) as TaskRequest;
}

/**
 * Raises the counters of a task whose sessions have just ended, and draws the consequences in the same transaction: the
 * rest is cancelled when there are enough usable samples, `replace` gets a fresh sample in its place while refills are
 * left, and the task ends with its last session. The caller holds the task's lock.
 */
export async function countEnded(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  taskId: string,
  added: EndedCounts,
  replace: SessionRow | null = null,
): Promise<void> {
  const task = await tables.tasks.addEnded(taskId, added);
  const open = task.total_sessions - task.completed_sessions;
  if (task.status === 'running' && open > 0 && hasEnough(task)) {
    await tables.tasks.update(taskId, { status: 'cancelled', early_stopped: 1 });
    effects.counted.push('early_stops');
    await cancelBatch(context, tables, effects, { ...task, status: 'cancelled', early_stopped: 1 });
  } else if (task.status === 'running' && replace !== null && task.refills_left > 0 && !hasEnough(task)) {
    await refill(context, tables, effects, task, replace);
  } else if (open === 0) {
    await finishTask(context, tables, effects, task);
  }
}

/** Whether the trainer has asked for no more usable samples than there are. */
function hasEnough(task: TaskRow): boolean {
  const least = requestIn(task).early_stop_min_usable_sessions;
  return least !== null && task.usable_sessions >= least;
}

async function refill(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  task: TaskRow,
  replaced: SessionRow,
): Promise<void> {
  const nowMs = context.time.nowMs();
  // Sample indexes are given out in order, and the task's lock is held: the next one is free.
  const session = { session_id: context.newId('ses'), sample_index: task.total_sessions };
  await tables.sessions.insert(
    {
      task_id: task.task_id,
      trainer: task.trainer,
      priority: replaced.priority,
      max_attempts: requestIn(task).max_attempts,
      not_before_ms: nowMs,
      queued_since_ms: nowMs,
      expected_ms: replaced.expected_ms,
      created_at: isoNow(context.clock),
    },
    [session],
  );
  await tables.tasks.update(task.task_id, {
    total_sessions: task.total_sessions + 1,
    refilled: task.refilled + 1,
    refills_left: task.refills_left - 1,
  });
  const fresh = { status: 'QUEUED', attempt: 1, epoch: 1, node_id: null, turns: 0, sampled_tokens: 0 } as const;
  effects.sessionChanged({ ...replaced, ...session, ...fresh });
  effects.counted.push('refills');
  effects.topics.add('queue');
}

/**
 * Cancels a batch of a cancelled task's open sessions, leased ones first. They are terminal at once; nodes are told with
 * their next heartbeat. What is left, because there is more or because another transaction holds it, ends with a later batch.
 * Returns how many there were. The caller holds the task's lock.
 */
export async function cancelBatch(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  task: TaskRow,
): Promise<number> {
  const rows = await tables.sessions.lockOpen(task.task_id, CANCEL_BATCH);
  await cancelRows(context, tables, effects, task, rows, cancelReason(task));
  if (task.completed_sessions + rows.length < task.total_sessions) effects.topics.add('cancelled');
  return rows.length;
}

/** Cancels open sessions of one task. The caller holds the task's lock, and the sessions'. */
export async function cancelRows(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  task: TaskRow,
  rows: readonly SessionRow[],
  reason: SessionError | null,
): Promise<void> {
  const request = requestIn(task);
  for (const row of rows) {
    const leased = row.lease_expires_ms !== null;
    await closeSession(context, tables, effects, row, {
      summary: serverSummary(row, request, 'cancelled', reason),
      blobs: NO_BLOBS,
      cancelRequested: leased,
    });
    if (leased && row.node_id !== null) effects.topics.add(`node:${row.node_id}`);
  }
  if (rows.length === 0) return;
  await countEnded(context, tables, effects, task.task_id, { ...NOTHING_GAINED, sessions: rows.length });
}

/** What the sessions of a cancelled task are told; null: a trainer cancelled it. */
export function cancelReason(task: TaskRow): SessionError | null {
  const error = { stage: null, details: {} };
  if (task.early_stopped === 1) {
    const message = `the task had enough usable samples (${task.usable_sessions}) before this one ended`;
    return { ...error, code: 'cancelled', message };
  }
  // A trainer's cancel takes the deadline away.
  if (task.deadline_ms === null) return null;
  const message = `the task had not ended within its deadline_seconds (${requestIn(task).deadline_seconds})`;
  return { ...error, code: 'deadline_exceeded', message };
}

async function finishTask(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  task: TaskRow,
): Promise<void> {
  // An early stop cancels the rest, but the task has reached what it was for.
  const status: TaskState = task.status === 'running' || task.early_stopped === 1 ? 'completed' : 'cancelled';
  await tables.tasks.update(task.task_id, { status, ended_ms: context.time.nowMs() });
  const group = groupReport(task, await tables.sessions.unusable(task.task_id));
  effects.events.push({ type: 'task.completed', task_id: task.task_id, status, group });
  if (task.callback_url === null) return;
  await tables.callbacks.insert({
    task_id: task.task_id,
    url: task.callback_url,
    tries: 0,
    next_try_ms: context.time.nowMs(),
    last_error: null,
    delivered_at: null,
  });
  effects.topics.add('callbacks');
}

/** What a trainer can use of a task's samples, and why not the others. */
export function groupReport(task: TaskRow, unusable: ReadonlyMap<UnusableReason, number>): GroupReport {
  return {
    requested: task.total_sessions - task.refilled,
    usable: task.usable_sessions,
    in_baseline: task.baseline_sessions,
    unusable: Object.fromEntries(unusable),
    open: task.total_sessions - task.completed_sessions,
    refilled: task.refilled,
    early_stopped: task.early_stopped === 1,
  };
}
