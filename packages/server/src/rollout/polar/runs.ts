import { FloeError } from '@floe-rl/core';
import type { TaskRequest } from '@floe-rl/core/schema';
import type { TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { cancelLocked } from '../sessions/cancel.ts';
import { type Alias, aliasedTask, insertAliased, nameOf, reserveAlias } from '../tasks/aliases.ts';
import { checkRequest, refuseCancelled } from '../tasks/submit.ts';
import { unknownTask } from '../tasks/views.ts';
import { runTransaction } from '../transaction.ts';

/**
 * Stores a task under a Polar task id and queues its sessions. Each submission becomes a separate floe task with an id of its own. A Polar
 * id may be used again after its task has ended; it then names the new task. Throws `conflict` while the task of this Polar id runs, or
 * when the id was cancelled before it was submitted.
 */
export async function submitRun(context: RolloutContext, polarId: string, request: TaskRequest): Promise<void> {
  const alias = polarAlias(polarId);
  await checkRequest(context, request);
  await runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    await reserveAlias(tables, alias);
    await refuseCancelled(transaction, nameOf(alias), polarId);
    const earlier = await aliasedTask(tables, alias, 'lock');
    if (earlier?.ended_ms === null) {
      throw new FloeError('conflict', `task ${polarId} is already running`, { task_id: polarId });
    }
    await insertAliased(transaction, alias, earlier, request);
  });
}

/**
 * Cancels the task that a Polar id names, as Polar does: no callback is sent for it. Resolves with `null` when the id is unknown and
 * `registerIfMissing` is set; submits with that id are then refused for `tombstone_seconds`. Otherwise an unknown id throws `not_found`.
 */
export async function cancelRun(
  context: RolloutContext,
  polarId: string,
  registerIfMissing: boolean,
): Promise<TaskRow | null> {
  const alias = polarAlias(polarId);
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    await reserveAlias(tables, alias);
    const task = await aliasedTask(tables, alias, 'lock');
    if (task === undefined) {
      if (!registerIfMissing) throw unknownTask(polarId);
      await tables.tombstones.put(nameOf(alias), context.time.nowMs() + context.config.tombstone_seconds * 1000);
      return null;
    }
    if (task.status !== 'running') return task;
    await tables.tasks.update(task.task_id, { callback_url: null });
    return cancelLocked(transaction, { ...task, callback_url: null });
  });
}

/** Returns the task that a Polar id names. Throws `not_found` for an unknown id. */
export async function readRun(context: RolloutContext, polarId: string): Promise<TaskRow> {
  const task = await context.store.read((tables) => aliasedTask(tables, polarAlias(polarId), 'get'));
  if (task === undefined) throw unknownTask(polarId);
  return task;
}

function polarAlias(polarId: string): Alias {
  return { api: 'polar', alias: polarId };
}
