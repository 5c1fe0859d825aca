import { FloeError } from '../../core/errors.ts';
import { isTerminal } from '../../core/session-state.ts';
import type { SessionView } from '../../schema/index.ts';
import type { StoreTables, TaskRow } from '../../store/index.ts';
import { change, type Effects, type RolloutContext } from '../context.ts';
import { cancelBatch, cancelRows } from '../tasks/groups.ts';
import { unknownTask } from '../tasks/submit.ts';
import { sessionView, unknownSession } from './views.ts';

/** Tasks looked at in one go. There are seldom more; the next look finds the others. */
const TASKS_AT_ONCE = 50;
/** How long a wake-up is waited for before the store is looked at unasked. */
const LOOK_AGAIN_MS = 1_000;

/**
 * Cancels a task: from now on no session of it succeeds or is handed out. Those that are leased end first; a batch ends here,
 * what remains of a large task is ended by {@link endCancelled}. A task that is already done stays as it is. An unknown id
 * throws `not_found`, unless `registerIfMissing`: then a later submit of that id is refused for a while, and the reply is
 * null.
 */
export async function cancelTask(
  context: RolloutContext,
  taskId: string,
  registerIfMissing: boolean,
): Promise<TaskRow | null> {
  return change(context, async (tables, effects) => {
    const task = await tables.tasks.lock(taskId);
    if (task === undefined) {
      if (!registerIfMissing) throw unknownTask(taskId);
      await tables.tombstones.put(taskId, context.time.nowMs() + context.config.tombstone_seconds * 1000);
      return null;
    }
    if (task.status !== 'running') return task;
    // Without the deadline the sessions are not told that it had passed.
    await markCancelled(context, tables, effects, { ...task, deadline_ms: null });
    return (await tables.tasks.get(taskId)) ?? task;
  });
}

/** Cancels what has not ended by its `deadline_seconds`. */
export async function sweepDeadlines(context: RolloutContext): Promise<void> {
  const nowMs = context.time.nowMs();
  const overdue = await context.store.read((tables) => tables.tasks.overdue(nowMs, TASKS_AT_ONCE));
  for (const { task_id: taskId } of overdue) {
    await change(context, async (tables, effects) => {
      const task = await tables.tasks.lock(taskId);
      if (task?.status !== 'running' || task.deadline_ms === null || task.deadline_ms > nowMs) return;
      effects.counted.push('deadlines');
      await markCancelled(context, tables, effects, task);
    });
  }
}

async function markCancelled(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  task: TaskRow,
): Promise<void> {
  await tables.tasks.update(task.task_id, { status: 'cancelled', deadline_ms: task.deadline_ms });
  await cancelBatch(context, tables, effects, { ...task, status: 'cancelled' });
}

/**
 * Ends the sessions that are left of cancelled and early-stopped tasks, a batch in each transaction, so that everything else
 * goes on beside it. What a server that died has left is found here too.
 */
export async function endCancelled(context: RolloutContext): Promise<void> {
  for (;;) {
    const tasks = await context.store.read((tables) => tables.tasks.unfinishedCancelled(TASKS_AT_ONCE));
    let ended = 0;
    for (const { task_id: taskId } of tasks) {
      if (context.closing.aborted) return;
      ended += await change(context, async (tables, effects) => {
        const task = await tables.tasks.lock(taskId);
        return task?.status === 'cancelled' ? cancelBatch(context, tables, effects, task) : 0;
      });
    }
    if (ended === 0) return;
  }
}

/** Runs {@link endCancelled} whenever there is something to end, until the server closes. */
export async function endCancelledForever(context: RolloutContext): Promise<void> {
  while (!context.closing.aborted) {
    await context.wakeups.poll('cancelled', LOOK_AGAIN_MS, context.closing, async () => {
      await endCancelled(context).catch((thrown: unknown) => {
        // The store may be full or busy for a while; it is looked at again.
        if (!FloeError.is(thrown) || thrown.code !== 'store_unavailable') throw thrown;
        context.log.error({ err: thrown }, 'the store is unavailable; cancelled sessions wait');
      });
      return undefined;
    });
  }
}

/** Cancels one session; one that has ended stays as it is. */
export async function cancelOneSession(context: RolloutContext, sessionId: string): Promise<SessionView> {
  return change(context, async (tables, effects) => {
    const named = await tables.sessions.get(sessionId);
    if (named === undefined) throw unknownSession(sessionId);
    const task = await tables.tasks.lock(named.task_id);
    const row = await tables.sessions.lock(sessionId);
    if (task === undefined || row === undefined) throw unknownSession(sessionId);
    if (isTerminal(row.status)) return sessionView(row);
    await cancelRows(context, tables, effects, task, [row], null);
    return sessionView((await tables.sessions.get(sessionId)) ?? row);
  });
}
