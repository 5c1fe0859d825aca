import { settleAll } from '@floe-rl/core';
import type { BatchStreamRequest } from '@floe-rl/core/schema';
import type { BatchGroupRow, BatchStreamRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { queryError } from '../field-errors.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { decideBatch, isOutdated, recordedRequest, type StreamState } from './batch-decision.ts';
import { cancelRunning } from './cancel-groups.ts';
import { sampleStaleness } from './sample-staleness.ts';
import { streamRequest, unknownStream } from './stream-request.ts';

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

/** The batch after `after`, or the news that there is none yet (`batch` is `null`). */
export type HandedBatch = {
  readonly stream: BatchStreamRow;
  readonly request: BatchStreamRequest;
  readonly after: number;
  readonly batch: number | null;
  readonly groups: readonly BatchGroupRow[];
  /** Whether the stream will have no further batch. */
  readonly isDone: boolean;
};

/**
 * Returns the batch after `after`. A batch that was handed out before is returned as it was, so that a request may be repeated. A request for a
 * new batch confirms all earlier ones and records the policy version: groups that are too old for it are started again.
 *
 * Throws `not_found` for an unknown stream, `schema_violation` for a batch number beyond the last one and for a version without a step, and
 * `conflict` for an older policy version than before.
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
      const { handed, isDone, expired } = decideBatch(await readState(tables, stream), size);
      return handed === null && !isDone && expired.length === 0 ? stream : null;
    });
    if (waiting === null) answer = await runTransaction(context, (transaction) => handOut(transaction, asked, after));
    else answer = { ...answer, stream: waiting };
    return isFinal(answer) ? answer : undefined;
  });
  return answer;
}

/** Reads what decides on the next batch of a stream. One statement reads all groups, because another server may end a group between two. */
async function readState({ batches }: StoreTables, stream: BatchStreamRow): Promise<StreamState> {
  const { batch_id: batchId, acknowledged, last_batch: last } = stream;
  const [groups, unsampledRows] = await settleAll([
    batches.openGroups(batchId, acknowledged, last),
    batches.countUnsampledRows(batchId),
  ]);
  return { stream, request: streamRequest(stream), groups, unsampledRows };
}

/**
 * Records a request in its stream, and hands out the next batch when there is one. `recorded` is the number of the batch after which this
 * request was recorded already; `null` for its first transaction. A request without `after` is recorded once more when another one got its batch.
 */
async function handOut(
  transaction: Transaction,
  { batchId, size, policyVersion, after: given }: NextBatchRequest,
  recorded: number | null,
): Promise<HandedBatch> {
  const { tables } = transaction;
  const { batches, results } = tables;
  const stored = await batches.lockStream(batchId);
  if (stored === undefined) throw unknownStream(batchId);
  const { last_batch: last } = stored;
  const after = given ?? last;
  if (after > last) throw queryError('after', `is ${after}, but the last batch that was handed out is ${last}`);
  if (after < last) {
    const groups = await batches.groupsOfBatches(batchId, after, after + 1);
    return { stream: stored, request: streamRequest(stored), after, batch: after + 1, groups, isDone: false };
  }
  const read = await readState(tables, stored);
  const { request } = read;
  const isRecorded = recorded !== null && recorded >= after;
  const record = isRecorded ? {} : recordedRequest(stored, size ?? request.batch_size, policyVersion);
  const state = { ...read, stream: { ...stored, ...record } };
  const { confirmed, expired, restarted, handed, isDone } = decideBatch(state, size);
  const ended = await cancelRunning(transaction, restarted, { state: 'restarted', repeat: 1 });
  // A group that became ready before its task was locked is too old, too, unless it was only cancelled for the sake of the next batch.
  const outdated = [...expired, ...ended.filter((group) => group.state === 'ready' && isOutdated(state, group))];
  const patch = handed === null ? record : { ...record, last_batch: after + 1 };
  const staleness = handed === null ? null : await sampleStaleness(tables, handed, state.stream.policy_step);
  const collected = [...confirmed, ...outdated];
  await settleAll([
    ...(collected.length === 0 ? [] : [results.collectTasks(tasksOf(collected))]),
    ...(outdated.length === 0 ? [] : [batches.updateGroups(tasksOf(outdated), { state: 'expired', repeat: 1 })]),
    ...(staleness === null ? [] : [batches.handOut(after + 1, staleness), batches.foldChanges(batchId)]),
    ...(Object.keys(patch).length === 0 ? [] : [batches.updateStream(batchId, patch)]),
  ]);
  // While a trainer has too many uncollected results, nodes get no sessions of it.
  if (confirmed.length > 0) transaction.wake('queue');
  if (!isRecorded || handed !== null) transaction.wake('batches');
  if (handed !== null) transaction.wake(`batch:${batchId}`);
  const stream = { ...state.stream, ...patch };
  return { stream, request, after, batch: handed === null ? null : after + 1, groups: handed ?? [], isDone };
}

function tasksOf(groups: readonly BatchGroupRow[]): string[] {
  return groups.map((group) => group.task_id);
}
