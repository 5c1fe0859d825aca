import { isoNow } from '../../core/clock.ts';
import { settleAll } from '../../core/promises.ts';
import { transition } from '../../core/session-state.ts';
import type { Outcome, SessionError } from '../../schema/index.ts';
import type { SessionRow, StoreTables, TaskRow } from '../../store/index.ts';
import type { Effects, RolloutContext } from '../context.ts';
import { cancelReason, cancelRows, countEnded, requestIn } from '../tasks/groups.ts';
import { closeSession, countsOf, type Ending, NO_BLOBS } from './closings.ts';
import { type NextAttempt, nextAttempt } from './retry.ts';
import { serverSummary } from './summary.ts';

/**
 * Ends a session for good: result cursor, counters of its task, what follows from them and, with the last session, the
 * task itself. The caller holds the task's lock, then the session's.
 */
export async function endSession(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  ending: Ending & { readonly hasEvaluator: boolean },
): Promise<number> {
  const counts = countsOf(ending.summary, ending.hasEvaluator);
  const [cursor] = await settleAll([
    closeSession(context, tables, effects, row, ending),
    countEnded(context, tables, effects, row.task_id, counts, counts.usable === 1 ? null : row),
  ]);
  return cursor;
}

/**
 * An attempt ended without a word: its node fell silent. The session is tried again at once, on another node if there is
 * one, or ends as `infra_error` when its attempts are used up. The caller holds the session's lock; where it can, the task's
 * before that.
 */
export async function loseAttempt(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  error: SessionError,
): Promise<void> {
  const task = await lockTaskOf(tables, row);
  if (task.status !== 'running') {
    await cancelRows(context, tables, effects, task, [row], cancelReason(task));
    return;
  }
  const next = await nextAttempt(context, tables, effects, row, 'infra_error', requestIn(task));
  // The time that the lease took to run out was delay enough.
  if (next !== null) await requeue(context, tables, effects, row, { ...next, delayMs: 0 });
  else await giveUp(context, tables, effects, row, 'infra_error', error);
}

/** Ends a session without a result because of the infrastructure. The caller holds the locks as for {@link endSession}. */
export async function giveUp(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  outcome: Outcome,
  error: SessionError,
): Promise<number> {
  const task = requestIn(await lockTaskOf(tables, row));
  return endSession(context, tables, effects, row, {
    summary: serverSummary(row, task, outcome, error),
    blobs: NO_BLOBS,
    epoch: row.epoch + 1,
    hasEvaluator: task.evaluator !== null,
  });
}

/** Puts a session back into the queue under the next epoch. */
export async function requeue(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  next: NextAttempt,
): Promise<void> {
  const nowMs = context.time.nowMs();
  const { avoidNode = null } = next;
  const patch = {
    status: transition(row.status, 'QUEUED'),
    attempt: next.attempt,
    max_attempts: next.maxAttempts ?? row.max_attempts,
    epoch: row.epoch + 1,
    node_id: null,
    lease_expires_ms: null,
    avoid_node: avoidNode,
    avoid_until_ms: avoidNode === null ? 0 : nowMs + next.delayMs + context.config.avoid_node_seconds * 1000,
    not_before_ms: nowMs + next.delayMs,
    queued_since_ms: nowMs,
    turns: 0,
    sampled_tokens: 0,
    updated_at: isoNow(context.clock),
  };
  await tables.sessions.update(row.session_id, patch);
  effects.sessionChanged({ ...row, ...patch });
  effects.topics.add('queue');
}

async function lockTaskOf(tables: StoreTables, row: SessionRow): Promise<TaskRow> {
  const task = await tables.tasks.lock(row.task_id);
  if (task === undefined) throw new Error(`a session names task ${row.task_id}, which is not stored`);
  return task;
}
