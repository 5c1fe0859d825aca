import type { BatchGroupRow } from '../../store/index.ts';
import { cancelLocked } from '../sessions/cancel.ts';
import type { Transaction } from '../transaction.ts';

/** The state into which a running group is put when its task is cancelled. */
type Cancelled = Pick<BatchGroupRow, 'repeat'> & { readonly state: 'restarted' | 'cancelled' };

/**
 * Cancels the tasks of running groups. `endingOf` returns the new state of a group, which must not depend on counts; `null` leaves it running. The caller holds the stream's
 * lock and no lock of a task.
 */
export async function cancelRunning(
  transaction: Transaction,
  batchId: string,
  endingOf: (group: BatchGroupRow) => Cancelled | null,
): Promise<void> {
  const { batches, tasks } = transaction.tables;
  const running = await batches.groups(batchId, 'running', Number.MAX_SAFE_INTEGER);
  const byTask = running.filter((group) => endingOf(group) !== null).sort((a, b) => (a.task_id < b.task_id ? -1 : 1));
  for (const { task_id: taskId } of byTask) {
    const task = await tasks.lock(taskId);
    // The group is read after its task was locked, because the task may have ended meanwhile.
    const group = await batches.groupOfTask(taskId);
    const ending = group?.state === 'running' ? endingOf(group) : null;
    if (group === undefined || ending === null) continue;
    await batches.updateGroup(batchId, group.group_no, ending);
    if (task !== undefined) await cancelLocked(transaction, task);
  }
}
