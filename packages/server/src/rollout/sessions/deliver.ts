import { FloeError, isoNow, KIB, settleAll } from '@floe-rl/core';
import { isTerminal } from '@floe-rl/core/protocol';
import type { DeliveryReply, PartialReply, SessionSummary } from '@floe-rl/core/schema';
import type { DeliveryRow, ResultBlobs, SessionRow, StoreTables, TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { endSession, requestOf } from '../tasks/groups.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { type DecodedDelivery, decodeDelivery, digestOf, storeParts, violation } from './delivery-envelope.ts';
import { observeDuration } from './durations.ts';
import { applyPolicy } from './end.ts';
import { giveUpSession, nextAttempt, requeueSession, wasHandedBack } from './retry.ts';
import { unknownSession } from './views.ts';

/**
 * Deliveries up to this size in bytes are checked against the session's lease only after their parts have been stored. An additional check
 * before storing costs as much as storing this many bytes, and few deliveries are refused.
 */
const UNCHECKED_BYTES = 256 * KIB;

/** A delivery whose parts are stored durably as blobs. */
type StoredDelivery = {
  readonly nodeId: string;
  readonly summary: SessionSummary;
  readonly digest: string;
  readonly blobs: ResultBlobs;
  readonly text: string;
};

/**
 * Accepts a session's result from the node that holds its lease. First the result's blobs are stored durably, then the rows that refer to
 * them, and then the reply is sent. A repeat of a delivery is acknowledged like the first one. Any other delivery that does not match the
 * lease throws `stale_epoch`, `cancelled` or `conflict` and changes nothing.
 */
export async function deliverResult(context: RolloutContext, nodeId: string, body: Buffer): Promise<DeliveryReply> {
  const decoded = decodeDelivery(nodeId, body);
  const { summary } = decoded;
  try {
    // Refuses an invalid delivery before its large parts are written. The transaction below repeats the check with locks, and its result
    // decides.
    if (body.length > UNCHECKED_BYTES) await checkBeforeStoring(context, nodeId, summary);
    const delivery = await store(context, decoded);
    return await context.deliveryTurns.run(summary.task_id, () => record(context, delivery));
  } catch (thrown) {
    countRefusal(context, thrown);
    throw thrown;
  }
}

async function store(context: RolloutContext, decoded: DecodedDelivery): Promise<StoredDelivery> {
  const blobs = await storeParts(context, decoded);
  return {
    nodeId: decoded.nodeId,
    summary: decoded.summary,
    digest: digestOf(decoded.header, blobs),
    blobs,
    text: decoded.text,
  };
}

function record(context: RolloutContext, delivery: StoredDelivery): Promise<DeliveryReply> {
  const { nodeId, summary, digest } = delivery;
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const [task, row] = await settleAll([tables.tasks.lock(summary.task_id), tables.sessions.lock(summary.session_id)]);
    const checked = await check(tables, nodeId, summary, row, task, digest);
    if (checked.kind === 'repeated') return checked.reply;
    return accept(transaction, checked, delivery);
  });
}

function checkBeforeStoring(context: RolloutContext, nodeId: string, summary: SessionSummary): Promise<Checked> {
  return context.store.read(async (tables) => {
    const row = await tables.sessions.get(summary.session_id);
    return check(tables, nodeId, summary, row, await tables.tasks.get(summary.task_id), null);
  });
}

function countRefusal(context: RolloutContext, thrown: unknown): void {
  if (!FloeError.is(thrown)) return;
  if (thrown.code === 'stale_epoch') context.counters.add('stale_results');
  if (thrown.code === 'cancelled' || thrown.code === 'conflict') context.counters.add('late_results');
}

async function accept(
  transaction: Transaction,
  { row, task }: { readonly row: SessionRow; readonly task: TaskRow },
  delivery: StoredDelivery,
): Promise<DeliveryReply> {
  const { context, tables } = transaction;
  // The node may have a lease request open that waits because the node held as many sessions as it may.
  transaction.wake(`capacity:${delivery.nodeId}`);
  const request = requestOf(task);
  const summary = applyPolicy(delivery.summary, request);
  // Only a trainer can cancel a session. A node that reports `cancelled` has given the session up, which is an infrastructure failure.
  const wasGivenUp = summary.outcome === 'cancelled';
  const next = wasHandedBack(summary)
    ? { attempt: row.attempt + 1, maxAttempts: row.max_attempts + 1, delayMs: 0 }
    : await nextAttempt(transaction, row, wasGivenUp ? 'infra_error' : summary.outcome, request);
  const kind = next === null ? 'result' : 'retried';
  const isResult = next === null && !wasGivenUp;
  const delivered = deliveryRow(context, row.epoch, kind, { ...delivery, summary });
  const added = tables.results.addDelivery(isResult ? { ...delivered, ...IN_RESULT } : delivered);
  const reply = { session_id: row.session_id, duplicate: false };
  if (next !== null) {
    await settleAll([added, requeueSession(transaction, row, next)]);
    return { ...reply, requeued: true, cursor: null };
  }
  const ended = wasGivenUp
    ? giveUpSession(transaction, row, 'infra_error', {
        code: 'peer_unreachable',
        message: `node ${delivery.nodeId} gave the session up in attempt ${row.attempt}, the last one`,
        stage: row.status,
        details: { node_id: delivery.nodeId },
      })
    : endSession(transaction, row, { task: request, summary, blobs: delivery.blobs, text: delivery.text });
  const [, cursor] = await settleAll([added, ended, observeDuration(transaction, request, summary)]);
  return { ...reply, requeued: false, cursor };
}

/** The fields of the delivery that is the result of its session. */
const IN_RESULT = { summary: null, trajectory_ref: null, completions_ref: null, artifacts_ref: null } as const;

function deliveryRow(
  context: RolloutContext,
  epoch: number,
  kind: DeliveryRow['kind'],
  { summary, digest, blobs }: StoredDelivery,
): DeliveryRow {
  return {
    session_id: summary.session_id,
    epoch,
    kind,
    digest,
    summary: JSON.stringify(summary),
    trajectory_ref: blobs.trajectory?.ref ?? null,
    completions_ref: blobs.completions?.ref ?? null,
    artifacts_ref: blobs.artifacts?.ref ?? null,
    delivered_at: isoNow(context.clock),
  };
}

type Checked = { kind: 'repeated'; reply: DeliveryReply } | { kind: 'new'; row: SessionRow; task: TaskRow };

/**
 * Checks a delivery against the session's lease. Throws unless the delivery may be accepted or repeats an earlier one. When `digest` is
 * `null`, the contents are not compared: once a result was delivered for an epoch, any further delivery for it counts as a repeat.
 */
async function check(
  tables: StoreTables,
  nodeId: string,
  summary: SessionSummary,
  row: SessionRow | undefined,
  task: TaskRow | undefined,
  digest: string | null,
): Promise<Checked> {
  const id = summary.session_id;
  if (row === undefined) throw unknownSession(id);
  checkIdentity(row, summary);
  if (task === undefined) throw new Error(`session ${id} names task ${row.task_id}, which is not stored`);
  const isOpenHere = row.epoch === summary.epoch && row.node_id === nodeId && !isTerminal(row.status);
  // While an epoch is still open, it has no delivered result, so the query for an earlier delivery is skipped.
  const earlier = isOpenHere ? undefined : await tables.results.delivery(id, summary.epoch);
  if (earlier !== undefined && earlier.kind !== 'partial' && (digest === null || earlier.digest === digest))
    return { kind: 'repeated', reply: await repeatedReply(tables, row, earlier) };
  if (row.status === 'CANCELLED' || (!isTerminal(row.status) && task.status !== 'running')) {
    throw new FloeError('cancelled', `session ${id} was cancelled`, { session_id: id });
  }
  if (row.epoch !== summary.epoch || row.node_id !== nodeId) {
    throw new FloeError('stale_epoch', `node ${nodeId} lost the lease on session ${id}`, {
      session_id: id,
      epoch: summary.epoch,
      current_epoch: row.epoch,
    });
  }
  if (!isOpenHere) {
    throw new FloeError('conflict', `session ${id} already has a different result`, { session_id: id });
  }
  if (row.attempt !== summary.attempt) throw violation('attempt', `is ${row.attempt} for epoch ${row.epoch}`);
  return { kind: 'new', row, task };
}

function checkIdentity(row: SessionRow, summary: SessionSummary): void {
  for (const field of ['task_id', 'sample_index'] as const) {
    if (row[field] !== summary[field]) throw violation(field, `is ${row[field]} for session ${row.session_id}`);
  }
}

async function repeatedReply(tables: StoreTables, row: SessionRow, earlier: DeliveryRow): Promise<DeliveryReply> {
  const requeued = earlier.kind === 'retried';
  const result = requeued ? undefined : await tables.results.ofSession(row.session_id);
  return { session_id: row.session_id, duplicate: true, requeued, cursor: result?.cursor ?? null };
}

/**
 * Stores the partial result of an attempt that lost its lease or whose process died. A partial result never changes the session, is never
 * trained on, and does not appear among the results. If the attempt has already delivered, its first delivery is kept. If the attempt turns
 * out to be alive, its result replaces the partial one. Throws `not_found` for a session or attempt that never existed, and
 * `schema_violation` for an invalid body.
 */
export async function deliverPartial(context: RolloutContext, nodeId: string, body: Buffer): Promise<PartialReply> {
  const decoded = decodeDelivery(nodeId, body);
  const { summary } = decoded;
  const reply = { session_id: summary.session_id };
  // Returns before any blob is stored when the server already has a delivery of this attempt. The transaction below repeats this check with
  // the session locked, because another delivery may arrive in the meantime.
  const isKnown = await context.store.read((tables) => hasDelivery(tables, summary, 'get'));
  if (isKnown) return { ...reply, duplicate: true };
  const delivery = await store(context, decoded);
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    if (await hasDelivery(tables, summary, 'lock')) return { ...reply, duplicate: true };
    const unusable: SessionSummary = { ...summary, unusable: summary.outcome };
    await tables.results.addDelivery(
      deliveryRow(context, summary.epoch, 'partial', { ...delivery, summary: unusable }),
    );
    transaction.count('partials_kept');
    return { ...reply, duplicate: false };
  });
}

async function hasDelivery(tables: StoreTables, summary: SessionSummary, read: 'get' | 'lock'): Promise<boolean> {
  const { session_id: id, epoch } = summary;
  const row = await tables.sessions[read](id);
  if (row === undefined) throw unknownSession(id);
  checkIdentity(row, summary);
  if (!hasExisted(row, summary)) {
    const message = `session ${id} never had attempt ${summary.attempt} with epoch ${epoch}`;
    throw new FloeError('not_found', message, { session_id: id, epoch, current_epoch: row.epoch });
  }
  return (await tables.results.delivery(id, epoch)) !== undefined;
}

/**
 * Whether a node has ever held a lease of this session with the given epoch and attempt. Epochs increase by one with each lease, so all
 * epochs below the current one have been leased. The current epoch counts only when the session has a node.
 */
function hasExisted(row: SessionRow, { epoch, attempt }: SessionSummary): boolean {
  if (epoch < 1 || attempt < 1 || attempt > row.attempt) return false;
  return epoch < row.epoch || (epoch === row.epoch && row.node_id !== null && attempt === row.attempt);
}
