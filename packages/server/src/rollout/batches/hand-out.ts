import { settleAll } from '@floe-rl/core';
import type { BatchStreamRequest } from '@floe-rl/core/schema';
import type { BatchStreamRow, HandedGroupRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { queryError } from '../field-errors.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { decideBatch, isOutdated, recordedRequest } from './batch-decision.ts';
import { cancelRunning } from './cancel-groups.ts';
import { stalenessByTask } from './sample-staleness.ts';
import { streamRequest, unknownStream } from './stream-request.ts';

export type NextBatchRequest = {
  readonly batchId: string;
  /** Number of groups or resolved samples; `undefined` for the stream's `batch_size`. */
  readonly size: number | undefined;
  readonly policyVersion: string | undefined;
  /** Number of the last batch that the trainer has handled; `undefined` for the last batch that was handed out. */
  readonly after: number | undefined;
  /** Longest time in milliseconds to wait for a complete batch. */
  readonly waitMs: number;
  readonly disconnected: AbortSignal;
};

/** The batch after `after`. `batch` is `null` when there is no such batch yet. */
export type HandedBatch = {
  readonly stream: BatchStreamRow;
  readonly request: BatchStreamRequest;
  readonly after: number;
  readonly batch: number | null;
  readonly groups: readonly HandedGroupRow[];
  /** Whether the stream will have no further batch. */
  readonly isDone: boolean;
};

/**
 * Returns the batch after `after`. A batch that was handed out before is returned unchanged, so that a request may be repeated. A request for
 * a new batch confirms all earlier batches and records the policy version. Groups that are too old for this version are started again.
 *
 * Throws `not_found` for an unknown stream. Throws `schema_violation` for a batch number beyond the last one and for a version without a step,
 * and `conflict` for an older policy version than before.
 */
export async function nextBatch(context: RolloutContext, asked: NextBatchRequest): Promise<HandedBatch> {
  const { batchId, size, waitMs, disconnected } = asked;
  const isFinal = ({ batch, isDone }: HandedBatch): boolean => batch !== null || isDone;
  let answer = await runTransaction(context, (transaction) => handOut(transaction, asked, null));
  if (isFinal(answer) || waitMs === 0) return answer;
  await context.wakeups.poll(`batch:${batchId}`, waitMs, disconnected, async () => {
    const { after } = answer;
    const waiting = await context.store.read(async (tables) => {
      const stream = await tables.batches.stream(batchId);
      if (stream === undefined) throw unknownStream(batchId);
      if (stream.last_batch !== after) return null;
      const open = await tables.batches.openState(batchId);
      const { handed, isDone, expired } = decideBatch({ stream, request: streamRequest(stream), ...open }, size);
      return handed === null && !isDone && expired.length === 0 ? stream : null;
    });
    if (waiting === null) answer = await runTransaction(context, (transaction) => handOut(transaction, asked, after));
    else answer = { ...answer, stream: waiting };
    return isFinal(answer) ? answer : undefined;
  });
  return answer;
}

/**
 * Records a request in its stream, and hands out the next batch when there is one. `recorded` is the number of the batch after which this
 * request was recorded already; `null` for its first transaction. When another request got the batch, a request without `after` is recorded
 * again.
 */
async function handOut(
  transaction: Transaction,
  { batchId, size, policyVersion, after: given }: NextBatchRequest,
  recorded: number | null,
): Promise<HandedBatch> {
  const { batches, facts, results } = transaction.tables;
  const stored = await batches.lockStream(batchId);
  if (stored === undefined) throw unknownStream(batchId);
  const { last_batch: last, acknowledged } = stored;
  const after = given ?? last;
  const batch = after + 1;
  if (after > last) throw queryError('after', `is ${after}, but the last batch that was handed out is ${last}`);
  const request = streamRequest(stored);
  if (after < last) {
    return {
      stream: stored,
      request,
      after,
      batch,
      groups: await batches.groupsOfBatch(batchId, batch),
      isDone: false,
    };
  }
  const isNew = recorded === null || recorded < after;
  const record = isNew ? recordedRequest(stored, size ?? request.batch_size, policyVersion) : {};
  const state = { stream: { ...stored, ...record }, request, ...(await batches.openState(batchId)) };
  const { expired, restarted, handed, isDone } = decideBatch(state, size);
  const ended = await cancelRunning(transaction, restarted, { state: 'restarted', repeat: 1 });
  // A group that has become ready after it was read may be too old as well.
  const outdated = [...expired, ...ended.filter((group) => group.state === 'ready' && isOutdated(state, group))];
  const expiredTasks = outdated.map((group) => group.task_id);
  const samples = handed === null ? [] : await facts.firstVersions(handed.map((group) => group.task_id));
  const patch = handed === null ? record : { ...record, last_batch: batch };
  const [groups] = await settleAll([
    handed === null
      ? Promise.resolve([])
      : batches.handOut(batchId, batch, stalenessByTask(handed, samples, state.stream.policy_step)),
    ...(isNew && last > acknowledged ? [results.collectBatches(batchId, acknowledged, last)] : []),
    ...(outdated.length === 0
      ? []
      : [batches.updateGroups(expiredTasks, { state: 'expired', repeat: 1 }), results.collectTasks(expiredTasks)]),
    ...(isNew || handed !== null ? [batches.updateStream(batchId, patch)] : []),
  ]);
  // While a trainer has too many uncollected results, nodes get no sessions of this trainer. The queue is therefore woken after a collection.
  if (isNew && last > acknowledged) transaction.wake('queue');
  if (isNew || handed !== null) transaction.wake('batches');
  if (handed !== null) transaction.wake(`batch:${batchId}`);
  return {
    stream: { ...state.stream, ...patch },
    request,
    after,
    batch: handed === null ? null : batch,
    groups,
    isDone,
  };
}
