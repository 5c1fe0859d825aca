import { isoNow } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { OUTCOMES } from '../core/outcomes.ts';
import { isTerminal } from '../core/session-state.ts';
import type { DeliveryReply, SessionSummary } from '../schema/index.ts';
import type { ResultBlobs, SessionRow, StoreTables } from '../store/index.ts';
import { change, type Effects, type RolloutContext } from './context.ts';
import { digestOf, readDelivery, storeParts, violation } from './delivered-parts.ts';
import { endSession, giveUp, requeue } from './endings.ts';
import { retryDelayMs } from './leases.ts';
import { knownNode } from './nodes.ts';

type Delivery = {
  readonly nodeId: string;
  readonly summary: SessionSummary;
  readonly digest: string;
  readonly blobs: ResultBlobs;
};

/**
 * Takes a session's result from the node that holds its lease. Blobs are durable before rows, rows before the reply. The
 * same delivery again is acknowledged again; anything else that does not fit the lease throws `stale_epoch`, `cancelled`
 * or `conflict` and changes nothing.
 */
export async function deliverResult(context: RolloutContext, nodeId: string, body: Buffer): Promise<DeliveryReply> {
  const delivered = readDelivery(nodeId, body);
  const { summary } = delivered;
  // Refuses before anything is written; the same checks hold again in the transaction that decides.
  await context.store.transaction((tables) => check(tables, nodeId, summary, null));
  const blobs = await storeParts(context, delivered);
  const digest = digestOf(delivered.header, blobs);
  return change(context, async (tables, effects) => {
    const checked = await check(tables, nodeId, summary, digest);
    if (checked.kind === 'repeated') return checked.reply;
    return accept(context, tables, effects, checked.row, { nodeId, summary, digest, blobs });
  });
}

async function accept(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  delivery: Delivery,
): Promise<DeliveryReply> {
  const { summary, blobs } = delivery;
  await tables.results.addDelivery({
    session_id: row.session_id,
    epoch: row.epoch,
    kind: 'result',
    digest: delivery.digest,
    summary: JSON.stringify(summary),
    trajectory_ref: blobs.trajectory?.ref ?? null,
    completions_ref: blobs.completions?.ref ?? null,
    artifacts_ref: blobs.artifacts?.ref ?? null,
    delivered_at: isoNow(context.clock),
  });
  const reply = { session_id: row.session_id, duplicate: false };
  // Only a trainer cancels; a node that reports it gave the session up, which is a failure of the infrastructure.
  const givenUp = summary.outcome === 'cancelled';
  // A node that shuts down hands its sessions back. That says nothing of them, so it costs them no try.
  if (summary.outcome === 'infra_error' && summary.error?.code === 'not_ready') {
    const next = { attempt: row.attempt + 1, maxAttempts: row.max_attempts + 1, delayMs: 0 };
    await requeue(context, tables, effects, row, next);
    return { ...reply, requeued: true, cursor: null };
  }
  if ((givenUp || OUTCOMES[summary.outcome].retried) && row.attempt < row.max_attempts) {
    const attempt = row.attempt + 1;
    await requeue(context, tables, effects, row, { attempt, delayMs: retryDelayMs(context, attempt) });
    return { ...reply, requeued: true, cursor: null };
  }
  const cursor = givenUp
    ? await giveUp(context, tables, effects, row, 'infra_error', {
        code: 'peer_unreachable',
        message: `node ${delivery.nodeId} gave the session up in attempt ${row.attempt}, the last one`,
        stage: row.status,
        details: { node_id: delivery.nodeId },
      })
    : await endSession(context, tables, effects, row, { summary, blobs });
  return { ...reply, requeued: false, cursor };
}

type Checked = { kind: 'repeated'; reply: DeliveryReply } | { kind: 'new'; row: SessionRow };

/** Throws unless the delivery fits the lease. Without a `digest`, any earlier delivery of this epoch is taken for the same. */
async function check(
  tables: StoreTables,
  nodeId: string,
  summary: SessionSummary,
  digest: string | null,
): Promise<Checked> {
  await knownNode(tables, nodeId);
  const id = summary.session_id;
  const row = await tables.sessions.lock(id);
  if (row === undefined) throw new FloeError('not_found', `session ${id} is not known`, { session_id: id });
  for (const field of ['task_id', 'sample_index'] as const) {
    if (row[field] !== summary[field]) throw violation(field, `is ${row[field]} for session ${id}`);
  }
  const earlier = await tables.results.delivery(id, summary.epoch);
  if (earlier !== undefined && (digest === null || earlier.digest === digest))
    return { kind: 'repeated', reply: repeatedReply(row, summary.epoch) };
  if (row.status === 'CANCELLED') {
    throw new FloeError('cancelled', `session ${id} was cancelled`, { session_id: id });
  }
  if (row.epoch !== summary.epoch || row.node_id !== nodeId) {
    throw new FloeError('stale_epoch', `node ${nodeId} lost the lease on session ${id}`, {
      session_id: id,
      epoch: summary.epoch,
      current_epoch: row.epoch,
    });
  }
  if (isTerminal(row.status)) {
    throw new FloeError('conflict', `session ${id} has a different result already`, { session_id: id });
  }
  if (row.attempt !== summary.attempt) throw violation('attempt', `is ${row.attempt} for epoch ${row.epoch}`);
  return { kind: 'new', row };
}

function repeatedReply(row: SessionRow, epoch: number): DeliveryReply {
  const ended = row.epoch === epoch;
  return { session_id: row.session_id, duplicate: true, requeued: !ended, cursor: ended ? row.cursor : null };
}
