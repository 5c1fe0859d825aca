import { policyStep } from '@floe-rl/core/protocol';
import type { BatchStaleness } from '@floe-rl/core/schema';
import type { BatchGroupRow, FactRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { streamRequest, unknownStream } from './stream-request.ts';

/** Name for the staleness of samples whose policy version names no step. */
const UNKNOWN = 'unknown';

/**
 * Returns, for the task of each group, the number of its samples by their staleness, as JSON text. The staleness is the number of policy steps
 * from the version of a sample's first token to `step`, the step of the batch. `step` is `null` when the trainer has named none; the staleness
 * is then `unknown`.
 */
export function stalenessByTask(
  groups: readonly BatchGroupRow[],
  samples: readonly Pick<FactRow, 'task_id' | 'first_version'>[],
  step: number | null,
): ReadonlyMap<string, string> {
  const counts = new Map(groups.map(({ task_id }) => [task_id, new Map<string, number>()]));
  for (const { task_id, first_version: version } of samples) {
    const sampled = version === null ? null : policyStep(version);
    const staleness = step === null || sampled === null ? UNKNOWN : String(step - sampled);
    const ofTask = counts.get(task_id);
    ofTask?.set(staleness, (ofTask.get(staleness) ?? 0) + 1);
  }
  return new Map([...counts].map(([id, ofTask]) => [id, JSON.stringify(Object.fromEntries(ofTask))]));
}

/** Returns the staleness of the samples in the newest batches of a stream, newest first. Throws `not_found` for an unknown stream. */
export async function readStaleness(context: RolloutContext, batchId: string, limit: number): Promise<BatchStaleness> {
  return context.store.read(async ({ batches }) => {
    const stream = await batches.stream(batchId);
    if (stream === undefined) throw unknownStream(batchId);
    const { purpose, max_staleness: bound } = streamRequest(stream);
    const { last_batch: last } = stream;
    const groups = await batches.groupsOfBatches(batchId, Math.max(0, last - limit), last);
    const counts = new Map<number, Record<string, number>>();
    for (const { batch_no: batch, staleness } of groups) {
      if (batch === null || staleness === null) continue;
      const ofBatch = counts.get(batch) ?? {};
      counts.set(batch, ofBatch);
      for (const [steps, count] of Object.entries(JSON.parse(staleness) as Record<string, number>)) {
        ofBatch[steps] = (ofBatch[steps] ?? 0) + count;
      }
    }
    const shown = [...counts].sort(([a], [b]) => b - a).map(([batch, samples]) => ({ batch, samples }));
    return { batch_id: batchId, max_staleness: purpose === 'train' ? bound : null, batches: shown };
  });
}
