import { FloeError } from '@floe-rl/core';
import { policyStep } from '@floe-rl/core/protocol';
import type { BatchRewind, BatchStreamView } from '@floe-rl/core/schema';
import type { RolloutContext } from '../context.ts';
import { bodyError } from '../field-errors.ts';
import { runTransaction } from '../transaction.ts';
import { cancelRunning } from './cancel-groups.ts';
import { unknownStream } from './stream-request.ts';
import { readStream } from './streams.ts';

/**
 * Takes the batches after `after` back, for a trainer that has restored a checkpoint. Their groups are handed out again, and no row is
 * skipped. Groups that were sampled by a newer policy than the restored policy are started again. Throws `schema_violation` for a batch that
 * was never handed out, and `conflict` for a stream that was ended.
 */
export async function rewindStream(
  context: RolloutContext,
  batchId: string,
  { after, policy_version: version }: BatchRewind,
): Promise<BatchStreamView> {
  const step = policyStep(version);
  if (step === null)
    throw bodyError('policy_version', 'must end in the number of its optimizer step, as in "7" or "v7"');
  await runTransaction(context, async (transaction) => {
    const { batches, results } = transaction.tables;
    const stream = await batches.lockStream(batchId);
    if (stream === undefined) throw unknownStream(batchId);
    if (stream.status === 'ended') {
      throw new FloeError('conflict', `the batch stream ${batchId} was ended, so none of its rows is sampled any more`);
    }
    if (after > stream.last_batch) {
      throw bodyError('after', `is ${after}, but the last batch that was handed out is ${stream.last_batch}`);
    }
    const isNewer = (policy: number | null): boolean => policy !== null && step !== null && policy > step;
    const running = await batches.groups(batchId, 'running', Number.MAX_SAFE_INTEGER);
    const newer = running.filter((group) => isNewer(group.policy_step));
    await cancelRunning(transaction, newer, { state: 'restarted', repeat: 1 });
    const handed = await batches.groupsOfBatches(batchId, after, stream.last_batch);
    const ready = await batches.groups(batchId, 'ready', Number.MAX_SAFE_INTEGER);
    for (const group of [...handed, ...ready]) {
      const isRestarted = isNewer(group.policy_step);
      const state = isRestarted ? { state: 'expired' as const, repeat: 1 } : { state: 'ready' as const };
      await batches.updateGroup(batchId, group.group_no, { ...state, batch_no: null, staleness: null });
      if (isRestarted) await results.collectTasks([group.task_id]);
    }
    await batches.updateStream(batchId, {
      last_batch: after,
      requested_batch: after,
      acknowledged: Math.min(stream.acknowledged, after),
      policy_version: version,
      policy_step: step,
    });
    transaction.wake('batches');
    transaction.wake(`batch:${batchId}`);
  });
  return readStream(context, batchId);
}
