import { isTerminal } from '@floe-rl/core/protocol';
import type { SessionView } from '@floe-rl/core/schema';
import type { TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { cancelBatch, cancelRows } from '../tasks/groups.ts';
import { unknownTask } from '../tasks/views.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { postponeWhileUnavailable } from '../watched-store.ts';
import { sessionView, unknownSession } from './views.ts';

/** Maximum number of tasks to cancel that one query reads. When there are more, the next query reads them. */
const TASK_BATCH = 50;
/** Interval at which the store is checked for cancelled tasks even when nothing wakes the loop. */
const POLL_INTERVAL_MS = 1_000;

/**
 * Cancels a task: from now on none of its sessions is leased or can succeed. Ends one batch of its sessions, first the sessions that nodes
 * hold; {@link endCancelled} ends the rest of a large task. A task that has already ended does not change. An unknown id throws `not_found`,
 * unless `registerIfMissing` is set: then submits with that id are refused for `tombstone_seconds`, and the result is `null`.
 */
export async function cancelTask(
  context: RolloutContext,
  taskId: string,
  registerIfMissing: boolean,
): Promise<TaskRow | null> {
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const task = await tables.tasks.lock(taskId);
    if (task === undefined) {
      if (!registerIfMissing) throw unknownTask(taskId);
      await tables.tombstones.put(taskId, context.time.nowMs() + context.config.tombstone_seconds * 1000);
      return null;
    }
    return cancelLocked(transaction, task);
  });
}

/** Cancels a task, as {@link cancelTask} does. The caller holds the task's lock. */
export async function cancelLocked(transaction: Transaction, task: TaskRow): Promise<TaskRow> {
  if (task.status !== 'running') return task;
  // The deadline is cleared so that the sessions do not report a passed deadline as the reason of their cancellation.
  await markCancelled(transaction, { ...task, deadline_ms: null });
  return (await transaction.tables.tasks.get(task.task_id)) ?? task;
}

/** Cancels the tasks that have not ended within their `deadline_seconds`. */
export async function sweepDeadlines(context: RolloutContext): Promise<void> {
  const nowMs = context.time.nowMs();
  const overdue = await context.store.read((tables) => tables.tasks.overdue(nowMs, TASK_BATCH));
  for (const { task_id: taskId } of overdue) {
    await runTransaction(context, async (transaction) => {
      const task = await transaction.tables.tasks.lock(taskId);
      if (task?.status !== 'running' || task.deadline_ms === null || task.deadline_ms > nowMs) return;
      transaction.count('deadlines');
      await markCancelled(transaction, task);
    });
  }
}

async function markCancelled(transaction: Transaction, task: TaskRow): Promise<void> {
  await transaction.tables.tasks.update(task.task_id, { status: 'cancelled', deadline_ms: task.deadline_ms });
  await cancelBatch(transaction, { ...task, status: 'cancelled' });
}

/**
 * Ends the open sessions of cancelled and early-stopped tasks, one batch per transaction, so that other transactions can run in between.
 * This includes sessions that a server left open when it died.
 */
export async function endCancelled(context: RolloutContext): Promise<void> {
  for (;;) {
    const tasks = await context.store.read((tables) => tables.tasks.unfinishedCancelled(TASK_BATCH));
    let ended = 0;
    for (const { task_id: taskId } of tasks) {
      if (context.closing.aborted) return;
      ended += await runTransaction(context, async (transaction) => {
        const task = await transaction.tables.tasks.lock(taskId);
        return task?.status === 'cancelled' ? cancelBatch(transaction, task) : 0;
      });
    }
    if (ended === 0) return;
  }
}

/** Runs {@link endCancelled} whenever a task was cancelled, and once a second, until the server closes. */
export async function runCancellations(context: RolloutContext): Promise<void> {
  while (!context.closing.aborted) {
    await context.wakeups.poll('cancelled', POLL_INTERVAL_MS, context.closing, () =>
      postponeWhileUnavailable(context.log, 'cancelled sessions wait', async () => {
        await endCancelled(context);
        return undefined;
      }),
    );
  }
}

/**
 * Cancels one session and returns its state. A session that has already ended does not change. Throws `not_found` for an unknown session.
 */
export async function cancelSession(context: RolloutContext, sessionId: string): Promise<SessionView> {
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    // The session is first read without a lock, because the lock of its task must be taken before the lock of the session.
    const session = await tables.sessions.get(sessionId);
    if (session === undefined) throw unknownSession(sessionId);
    const task = await tables.tasks.lock(session.task_id);
    const row = await tables.sessions.lock(sessionId);
    if (task === undefined || row === undefined) throw unknownSession(sessionId);
    if (isTerminal(row.status)) return sessionView(row);
    await cancelRows(transaction, task, [row], null);
    return sessionView((await tables.sessions.get(sessionId)) ?? row);
  });
}
