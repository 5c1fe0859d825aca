import { isoNow } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { settleAll } from '../../core/promises.ts';
import { isTerminal } from '../../core/session-state.ts';
import type { DeliveryReply, SessionSummary } from '../../schema/index.ts';
import type { DeliveryRow, ResultBlobs, SessionRow, StoreTables, TaskRow } from '../../store/index.ts';
import { change, type Effects, type RolloutContext } from '../context.ts';
import { requestIn } from '../tasks/groups.ts';
import { digestOf, readDelivery, storeParts, violation } from './delivery-envelope.ts';
import { observeDuration } from './durations.ts';
import { endSession, giveUp, requeue } from './end.ts';
import { nextAttempt, wasHandedBack } from './retry.ts';
import { judged } from './summary.ts';

/** Results up to this size are stored before it is known whether they are wanted: few are not, and looking costs as much as storing. */
const UNCHECKED_BYTES = 256 * 1024;

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
  try {
    // Refuses before anything large is written; the same checks hold again in the transaction that decides.
    if (body.length > UNCHECKED_BYTES) await checkFirst(context, nodeId, summary);
    const blobs = await storeParts(context, delivered);
    const delivery = { nodeId, summary, digest: digestOf(delivered.header, blobs), blobs };
    return await change(context, async (tables, effects) => {
      const [task, row] = await settleAll([
        tables.tasks.lock(summary.task_id),
        tables.sessions.lock(summary.session_id),
      ]);
      const checked = await check(tables, nodeId, summary, row, task, delivery.digest);
      if (checked.kind === 'repeated') return checked.reply;
      return accept(context, tables, effects, checked, delivery);
    });
  } catch (thrown) {
    countRefusal(context, thrown);
    throw thrown;
  }
}

function checkFirst(context: RolloutContext, nodeId: string, summary: SessionSummary): Promise<Checked> {
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
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  { row, task }: { readonly row: SessionRow; readonly task: TaskRow },
  delivery: Delivery,
): Promise<DeliveryReply> {
  const { blobs } = delivery;
  const request = requestIn(task);
  const summary = judged(delivery.summary, request);
  // Only a trainer cancels; a node that reports it gave the session up, which is a failure of the infrastructure.
  const givenUp = summary.outcome === 'cancelled';
  const next = wasHandedBack(summary)
    ? { attempt: row.attempt + 1, maxAttempts: row.max_attempts + 1, delayMs: 0 }
    : await nextAttempt(context, tables, effects, row, givenUp ? 'infra_error' : summary.outcome, request);
  const added = tables.results.addDelivery({
    session_id: row.session_id,
    epoch: row.epoch,
    kind: next === null ? 'result' : 'retried',
    digest: delivery.digest,
    summary: JSON.stringify(summary),
    trajectory_ref: blobs.trajectory?.ref ?? null,
    completions_ref: blobs.completions?.ref ?? null,
    artifacts_ref: blobs.artifacts?.ref ?? null,
    delivered_at: isoNow(context.clock),
  });
  const reply = { session_id: row.session_id, duplicate: false };
  if (next !== null) {
    await settleAll([added, requeue(context, tables, effects, row, next)]);
    return { ...reply, requeued: true, cursor: null };
  }
  const ended = givenUp
    ? giveUp(context, tables, effects, row, 'infra_error', {
        code: 'peer_unreachable',
        message: `node ${delivery.nodeId} gave the session up in attempt ${row.attempt}, the last one`,
        stage: row.status,
        details: { node_id: delivery.nodeId },
      })
    : endSession(context, tables, effects, row, { summary, blobs, hasEvaluator: request.evaluator !== null });
  const [, cursor] = await settleAll([added, ended, observeDuration(context, tables, request, summary)]);
  return { ...reply, requeued: false, cursor };
}

type Checked = { kind: 'repeated'; reply: DeliveryReply } | { kind: 'new'; row: SessionRow; task: TaskRow };

/** Throws unless the delivery fits the lease. Without a `digest`, any earlier delivery of this epoch is taken for the same. */
async function check(
  tables: StoreTables,
  nodeId: string,
  summary: SessionSummary,
  row: SessionRow | undefined,
  task: TaskRow | undefined,
  digest: string | null,
): Promise<Checked> {
  const id = summary.session_id;
  if (row === undefined) throw new FloeError('not_found', `session ${id} is not known`, { session_id: id });
  for (const field of ['task_id', 'sample_index'] as const) {
    if (row[field] !== summary[field]) throw violation(field, `is ${row[field]} for session ${id}`);
  }
  if (task === undefined) throw new Error(`a session names task ${row.task_id}, which is not stored`);
  const fits = row.epoch === summary.epoch && row.node_id === nodeId && !isTerminal(row.status);
  // An epoch that is still open has had no result.
  const earlier = fits ? undefined : await tables.results.delivery(id, summary.epoch);
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
  if (!fits) throw new FloeError('conflict', `session ${id} has a different result already`, { session_id: id });
  if (row.attempt !== summary.attempt) throw violation('attempt', `is ${row.attempt} for epoch ${row.epoch}`);
  return { kind: 'new', row, task };
}

async function repeatedReply(tables: StoreTables, row: SessionRow, earlier: DeliveryRow): Promise<DeliveryReply> {
  const requeued = earlier.kind === 'retried';
  const result = requeued ? undefined : await tables.results.ofSession(row.session_id);
  return { session_id: row.session_id, duplicate: true, requeued, cursor: result?.cursor ?? null };
}
