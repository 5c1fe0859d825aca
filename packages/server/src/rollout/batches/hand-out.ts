import { FloeError } from '@floe-rl/core';
import { policyStep } from '@floe-rl/core/protocol';
import type { BatchStreamRequest } from '@floe-rl/core/schema';
import type { BatchGroupRow, BatchStreamRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { queryError } from '../field-errors.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { cancelRunning } from './cancel-groups.ts';
import { isDone, isSampled } from './next-row.ts';
import { sampleStaleness } from './sample-staleness.ts';
import { streamRequest, unknownStream, waitedSize } from './stream-request.ts';
import { stalenessOf } from './views.ts';

export type NextBatchRequest = {
  readonly batchId: string;
  /** Number of groups or resolved samples; `undefined` for the stream's `batch_size`. */
  readonly size: number | undefined;
  readonly policyVersion: string | undefined;
  /** Number of the last batch that the trainer has handled; `undefined` for the last one that was handed out. */
  readonly after: number | undefined;
  /** Longest time in milliseconds to wait for a complete batch. */
  readonly waitMs: number;
  readonly disconnected: AbortSignal;
};

/** A batch, or the news that there is none yet (`batch` is `null`). */
export type HandedBatch = {
  readonly stream: BatchStreamRow;
  readonly batch: number | null;
  readonly groups: readonly BatchGroupRow[];
  readonly isDone: boolean;
  /** Whether this request made the batch; `false` for a batch that was handed out before. */
  readonly isNew: boolean;
};

/**
 * Returns the batch after `after`. A batch that was handed out before is returned as it was, so that a request may be repeated. A request for a
 * new batch confirms all earlier ones and records the policy version: groups that are too old for it are started again.
 *
 * Throws `not_found` for an unknown stream, `schema_violation` for a batch number beyond the last one and for a version without a step, and
 * `conflict` for an older policy version than before.
 */
export async function nextBatch(context: RolloutContext, request: NextBatchRequest): Promise<HandedBatch> {
  let after = await openRequest(context, request);
  const found = await context.wakeups.poll(
    `batch:${request.batchId}`,
    request.waitMs,
    request.disconnected,
    async () => {
      for (;;) {
        const taken = await takeBatch(context, request, after);
        if (request.after !== undefined || taken?.batch !== after + 1 || taken.isNew) return taken;
        // Another request without `after` got this batch, so this one requests the batch after it.
        after = await openRequest(context, request);
      }
    },
  );
  if (found !== undefined) return found;
  const stream = await context.store.read((tables) => tables.batches.stream(request.batchId));
  if (stream === undefined) throw unknownStream(request.batchId);
  return { stream, batch: null, groups: [], isDone: false, isNew: false };
}

/** Records a trainer's request for the batch after `after`, and resolves to that number. */
async function openRequest(context: RolloutContext, request: NextBatchRequest): Promise<number> {
  return runTransaction(context, async (transaction) => {
    const { batches } = transaction.tables;
    const stream = await batches.lockStream(request.batchId);
    if (stream === undefined) throw unknownStream(request.batchId);
    const after = request.after ?? stream.last_batch;
    if (after > stream.last_batch) {
      const message = `is ${after}, but the last batch that was handed out is ${stream.last_batch}`;
      throw queryError('after', message);
    }
    if (after < stream.last_batch) return after;
    const policy = newPolicy(stream, request.policyVersion);
    await acknowledge(transaction, stream, after);
    const size = request.size ?? streamRequest(stream).batch_size;
    await batches.updateStream(request.batchId, {
      ...policy,
      acknowledged: after,
      requested_batch: after + 1,
      // Requests of several processes may wait at the same time, each with a size of its own.
      requested_size: Math.max(size, waitedSize(stream)),
    });
    await restartOutdated(transaction, { ...stream, ...policy });
    transaction.wake('batches');
    return after;
  });
}

/** Returns the policy version of a request, checked against that of the stream. */
function newPolicy(
  stream: BatchStreamRow,
  version: string | undefined,
): Pick<BatchStreamRow, 'policy_version' | 'policy_step'> {
  if (version === undefined) return { policy_version: stream.policy_version, policy_step: stream.policy_step };
  const step = policyStep(version);
  if (step === null) {
    const message = 'must end in the number of its optimizer step, as in "7", "v7" or "run-step-7"';
    throw queryError('policy_version', message);
  }
  if (stream.policy_step !== null && step < stream.policy_step) {
    throw new FloeError(
      'conflict',
      `the policy version ${version} is older than ${stream.policy_version}, which the trainer gave before; ` +
        'after restoring a checkpoint, call POST /rollout/batches/{id}/rewind first',
      { policy_version: version, newest: stream.policy_version },
    );
  }
  return { policy_version: version, policy_step: step };
}

/** Marks the results of the batches up to `after` as collected by the trainer. */
async function acknowledge(transaction: Transaction, stream: BatchStreamRow, after: number): Promise<void> {
  const { batches, results } = transaction.tables;
  for (const group of await batches.groupsOfBatches(stream.batch_id, stream.acknowledged, after)) {
    await results.collectTask(group.task_id);
  }
  // While a trainer has too many uncollected results, nodes get no sessions of it.
  if (after > stream.acknowledged) transaction.wake('queue');
}

function isOutdated(stream: BatchStreamRow, request: BatchStreamRequest, group: BatchGroupRow): boolean {
  return request.purpose === 'train' && stalenessOf(stream, group) > request.max_staleness;
}

/** Starts the groups again that are too old for the current policy. */
async function restartOutdated(transaction: Transaction, stream: BatchStreamRow): Promise<void> {
  const { batches, results } = transaction.tables;
  const { batch_id: batchId } = stream;
  const request = streamRequest(stream);
  await cancelRunning(transaction, batchId, (group) =>
    isOutdated(stream, request, group) ? { state: 'restarted', repeat: 1 } : null,
  );
  for (const group of await batches.groups(batchId, 'ready', Number.MAX_SAFE_INTEGER)) {
    if (!isOutdated(stream, request, group)) continue;
    await batches.updateGroup(batchId, group.group_no, { state: 'expired', repeat: 1 });
    await results.collectTask(group.task_id);
  }
}

/**
 * Makes the batch after `after` from the oldest ready groups when there are enough, or when no further group will become ready. Resolves to
 * `undefined` while there is no batch.
 */
async function takeBatch(
  context: RolloutContext,
  { batchId, size }: NextBatchRequest,
  after: number,
): Promise<HandedBatch | undefined> {
  const early = await context.store.read(async (tables): Promise<HandedBatch | boolean> => {
    const stream = await tables.batches.stream(batchId);
    if (stream === undefined) throw unknownStream(batchId);
    if (stream.last_batch > after) return handedBatch(tables, stream, after + 1);
    const request = streamRequest(stream);
    if (await isDone(tables, stream, request)) return { stream, batch: null, groups: [], isDone: true, isNew: false };
    const ready = await tables.batches.groups(batchId, 'ready', Number.MAX_SAFE_INTEGER);
    return chosenGroups(ready, request, size) !== null || isSampled(tables, stream, request);
  });
  if (early === false) return undefined;
  if (early !== true) return early;
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const stream = await tables.batches.lockStream(batchId);
    if (stream === undefined || stream.status === 'ended') return undefined;
    if (stream.last_batch > after) return handedBatch(tables, stream, after + 1);
    const request = streamRequest(stream);
    // Determined before the ready groups are read, because another server may end a group between the statements, and once more after
    // groups that are too old were put back.
    const wasSampled = await isSampled(tables, stream, request);
    const ready = await storedGroups(transaction, stream, request);
    const isLast = wasSampled && (await isSampled(tables, stream, request));
    const groups = chosenGroups(ready, request, size) ?? (isLast && ready.length > 0 ? ready : null);
    if (groups === null) return undefined;
    const batch = after + 1;
    const staleness = await sampleStaleness(tables, groups, stream.policy_step);
    for (const { group_no: groupNo, task_id: taskId } of groups) {
      const handed = { state: 'handed', batch_no: batch, staleness: staleness.get(taskId) ?? null } as const;
      await tables.batches.updateGroup(batchId, groupNo, handed);
    }
    await tables.batches.foldChanges(batchId);
    const handed = { last_batch: batch };
    await tables.batches.updateStream(batchId, handed);
    if (request.unfinished === 'restart' && request.purpose === 'train') {
      await cancelRunning(transaction, batchId, () => ({ state: 'restarted', repeat: 1 }));
    }
    transaction.wake('batches');
    transaction.wake(`batch:${batchId}`);
    return { stream: { ...stream, ...handed }, batch, groups, isDone: false, isNew: true };
  });
}

/** Returns a batch that was handed out before. */
async function handedBatch(tables: StoreTables, stream: BatchStreamRow, batch: number): Promise<HandedBatch> {
  const groups = await tables.batches.groupsOfBatches(stream.batch_id, batch - 1, batch);
  return { stream, batch, groups, isDone: false, isNew: false };
}

/** Returns the ready groups whose results are still stored. Groups that are too old, or whose task was removed, are started again. */
async function storedGroups(
  { tables }: Transaction,
  stream: BatchStreamRow,
  request: BatchStreamRequest,
): Promise<BatchGroupRow[]> {
  const ready = await tables.batches.groups(stream.batch_id, 'ready', Number.MAX_SAFE_INTEGER);
  const tasks = await tables.tasks.getMany(ready.map(({ task_id }) => task_id));
  const stored = new Set(tasks.map(({ task_id }) => task_id));
  const usable: BatchGroupRow[] = [];
  for (const group of ready) {
    if (stored.has(group.task_id) && !isOutdated(stream, request, group)) {
      usable.push(group);
      continue;
    }
    await tables.batches.updateGroup(stream.batch_id, group.group_no, { state: 'expired', repeat: 1 });
    await tables.results.collectTask(group.task_id);
  }
  return usable;
}

/** Returns the first groups that make a complete batch; `null` when there are too few. */
function chosenGroups(
  ready: readonly BatchGroupRow[],
  { batch_size: batchSize, batch_unit: unit }: BatchStreamRequest,
  size: number | undefined,
): readonly BatchGroupRow[] | null {
  let missing = size ?? batchSize;
  for (const [index, group] of ready.entries()) {
    missing -= unit === 'group' ? 1 : group.resolved;
    if (missing <= 0) return ready.slice(0, index + 1);
  }
  return null;
}
