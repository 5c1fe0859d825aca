import type { BatchGroupRow } from '../../store/index.ts';
import { cancelLocked } from '../sessions/cancel.ts';
import type { Transaction } from '../transaction.ts';

/** The state into which a running group is put when its task is cancelled. */
type Cancelled = Pick<BatchGroupRow, 'repeat'> & { readonly state: 'restarted' | 'cancelled' };

/**
 * Cancels the tasks of running groups, and puts the groups into the state `ending`. Returns the groups that had ended before their tasks were
 * locked; they do not change. The caller must hold the stream's lock and no lock of a task.
 */
export async function cancelRunning(
  transaction: Transaction,
  running: readonly BatchGroupRow[],
  ending: Cancelled,
): Promise<BatchGroupRow[]> {
  const { batches, tasks } = transaction.tables;
  const ended: BatchGroupRow[] = [];
  for (const { task_id: taskId } of [...running].sort((a, b) => (a.task_id < b.task_id ? -1 : 1))) {
    const task = await tasks.lock(taskId);
    // The group is read after its task was locked, because the task may have ended meanwhile.
    const group = await batches.groupOfTask(taskId);
    if (group === undefined) continue;
    if (group.state !== 'running') {
      ended.push(group);
      continue;
    }
    await batches.updateGroup(group.batch_id, group.group_no, ending);
    if (task !== undefined) await cancelLocked(transaction, task);
  }
  return ended;
}
