import { isoNow, settleAll } from '@floe-rl/core';
import type { GroupReport, SessionError, TaskRequest, TaskState, UnusableReason } from '@floe-rl/core/schema';
import type { EndedCounts, SessionRow, TaskRow } from '../../store/index.ts';
import { settleGroup } from '../batches/settle.ts';
import { closeSession, countsOf, type Ending, NO_BLOBS, serverSummary } from '../sessions/end.ts';
import type { Transaction } from '../transaction.ts';

/** Maximum number of sessions that one transaction cancels. This takes about 30 ms, so other transactions do not wait for long. */
const CANCEL_BATCH = 200;

const NO_COUNTS: EndedCounts = { sessions: 0, rewardSum: 0, rewardCount: 0, usable: 0, inBaseline: 0 };

/** Returns the stored request of a task. It was checked before it was stored, so it is not checked again. */
export function requestOf(task: Pick<TaskRow, 'request'>): TaskRequest {
  return JSON.parse(task.request) as TaskRequest;
}

/**
 * Ends a session: adds its result, and updates the counters of its task with the consequences that {@link countEnded} describes. Resolves
 * to the result's cursor. The caller must hold two locks: it has locked the row of the task first, and then the row of the session.
 */
export async function endSession(transaction: Transaction, row: SessionRow, ending: Ending): Promise<number> {
  const counts = countsOf(ending.summary, ending.task.evaluator !== null);
  const [cursor] = await settleAll([
    closeSession(transaction, row, ending),
    countEnded(transaction, row.task_id, counts, counts.usable === 1 ? null : row),
  ]);
  return cursor;
}

/**
 * Updates the counters of a task whose sessions have just ended, and applies the consequences in the same transaction. Once the task has
 * enough usable samples, its open sessions are cancelled. While it has refills left, the unusable session `replace` is replaced by a new
 * sample. The task ends with its last session. The caller holds the task's lock.
 */
async function countEnded(
  transaction: Transaction,
  taskId: string,
  added: EndedCounts,
  replace: SessionRow | null = null,
): Promise<void> {
  const { tables } = transaction;
  const task = await tables.tasks.addEnded(taskId, added);
  const open = task.total_sessions - task.completed_sessions;
  const { completed_sessions, total_sessions } = task;
  transaction.publish({ type: 'task.updated', task_id: taskId, completed_sessions, total_sessions });
  if (task.status === 'running' && open > 0 && hasEnoughUsable(task)) {
    await tables.tasks.update(taskId, { status: 'cancelled', early_stopped: 1 });
    transaction.count('early_stops');
    await cancelBatch(transaction, { ...task, status: 'cancelled', early_stopped: 1 });
  } else if (task.status === 'running' && replace !== null && task.refills_left > 0 && !hasEnoughUsable(task)) {
    await addRefill(transaction, task, replace);
  } else if (open === 0) {
    await finishTask(transaction, task);
  }
}

/** Whether the task already has the number of usable samples at which it may stop early (`early_stop_min_usable_sessions`). */
function hasEnoughUsable(task: TaskRow): boolean {
  const least = requestOf(task).early_stop_min_usable_sessions;
  return least !== null && task.usable_sessions >= least;
}

async function addRefill(transaction: Transaction, task: TaskRow, replaced: SessionRow): Promise<void> {
  const { context, tables } = transaction;
  const nowMs = context.time.nowMs();
  // Sample indexes are assigned consecutively and the task is locked, so the number of sessions is the next free index.
  const session = { session_id: context.newId('ses'), sample_index: task.total_sessions };
  await tables.sessions.insert(
    {
      task_id: task.task_id,
      trainer: task.trainer,
      priority: replaced.priority,
      max_attempts: requestOf(task).max_attempts,
      not_before_ms: nowMs,
      queued_since_ms: nowMs,
      expected_ms: replaced.expected_ms,
      memory_mb: replaced.memory_mb,
      created_at: isoNow(context.clock),
    },
    [session],
  );
  await tables.tasks.update(task.task_id, {
    total_sessions: task.total_sessions + 1,
    refilled: task.refilled + 1,
    refills_left: task.refills_left - 1,
  });
  const initial = { status: 'QUEUED', attempt: 1, epoch: 1, node_id: null, turns: 0, sampled_tokens: 0 } as const;
  transaction.sessionChanged({ ...replaced, ...session, ...initial });
  transaction.count('refills');
  transaction.wake('queue');
}

/**
 * Cancels one batch of a cancelled task's open sessions, leased ones first, and returns how many it cancelled. The sessions are terminal
 * immediately; their nodes are informed in the reply to their next heartbeat. A later batch ends the remaining sessions, which exceeded the
 * batch size or were locked by another transaction. The caller holds the task's lock.
 */
export async function cancelBatch(transaction: Transaction, task: TaskRow): Promise<number> {
  const rows = await transaction.tables.sessions.lockOpen(task.task_id, CANCEL_BATCH);
  await cancelRows(transaction, task, rows, cancelReason(task));
  if (task.completed_sessions + rows.length < task.total_sessions) transaction.wake('cancelled');
  return rows.length;
}

/** Cancels the open sessions `rows` of one task. The caller holds the lock of the task and the locks of these sessions. */
export async function cancelRows(
  transaction: Transaction,
  task: TaskRow,
  rows: readonly SessionRow[],
  reason: SessionError | null,
): Promise<void> {
  const request = requestOf(task);
  for (const row of rows) {
    const isLeased = row.lease_expires_ms !== null;
    await closeSession(transaction, row, {
      task: request,
      summary: serverSummary(row, request, 'cancelled', reason),
      blobs: NO_BLOBS,
      cancelRequested: isLeased,
    });
    if (isLeased && row.node_id !== null) transaction.wake(`node:${row.node_id}`);
  }
  if (rows.length === 0) return;
  await countEnded(transaction, task.task_id, { ...NO_COUNTS, sessions: rows.length });
}

/** Returns the error that the sessions of a cancelled task report; `null` when a trainer cancelled the task. */
export function cancelReason(task: TaskRow): SessionError | null {
  const error = { stage: null, details: {} };
  if (task.early_stopped === 1) {
    const message = `the task had enough usable samples (${task.usable_sessions}) before this one ended`;
    return { ...error, code: 'cancelled', message };
  }
  // A task without a deadline was cancelled by a trainer: when a trainer cancels a task, the task's deadline is set to `null`.
  if (task.deadline_ms === null) return null;
  const message = `the task had not ended within its deadline_seconds (${requestOf(task).deadline_seconds})`;
  return { ...error, code: 'deadline_exceeded', message };
}

async function finishTask(transaction: Transaction, task: TaskRow): Promise<void> {
  const { context, tables } = transaction;
  // An early stop cancels the open sessions, but the task then has the samples for which it was submitted, so it counts as completed.
  const status: TaskState = task.status === 'running' || task.early_stopped === 1 ? 'completed' : 'cancelled';
  await tables.tasks.update(task.task_id, { status, ended_ms: context.time.nowMs() });
  const group = groupReport(task, await tables.sessions.unusable(task.task_id));
  transaction.publish({ type: 'task.completed', task_id: task.task_id, status, group });
  transaction.wake(`task:${task.task_id}`);
  await settleGroup(transaction, task, status === 'cancelled');
  if (task.callback_url === null) return collectAliased(transaction, task.task_id);
  await tables.callbacks.insert({
    task_id: task.task_id,
    url: task.callback_url,
    tries: 0,
    next_try_ms: context.time.nowMs(),
    last_error: null,
    delivered_at: null,
  });
  transaction.wake('callbacks');
}

/**
 * Marks the results of an ended task as collected when the task was submitted through another system's API. Clients of these APIs cannot
 * acknowledge results, so without a callback nothing else would mark them.
 */
async function collectAliased({ tables }: Transaction, taskId: string): Promise<void> {
  if ((await tables.aliases.ofTask(taskId)) !== undefined) await tables.results.collectTasks([taskId]);
}

/** Reports how many of a task's samples a trainer can use, and for each reason how many samples are not usable. */
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
