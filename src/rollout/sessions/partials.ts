import { isoNow } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { PartialReply, SessionSummary } from '../../schema/index.ts';
import type { SessionRow, StoreTables } from '../../store/index.ts';
import { change, type RolloutContext } from '../context.ts';
import { digestOf, readDelivery, storeParts, violation } from './delivery-envelope.ts';

/**
 * Keeps what is left of an attempt that lost its lease or whose process died. It never changes the session, is never
 * trained and never among the results. Kept once: of an attempt that has delivered before, nothing more is stored. Should
 * the attempt prove to be alive, its result takes the place. Throws `not_found` for a session or attempt that never was,
 * and `schema_violation`.
 */
export async function keepPartial(context: RolloutContext, nodeId: string, body: Buffer): Promise<PartialReply> {
  const delivered = readDelivery(nodeId, body);
  const { summary } = delivered;
  // Refuses before anything is written; the same checks hold again in the transaction that decides.
  const known = await context.store.read((tables) => alreadyKept(tables, summary, 'get'));
  if (known) return { session_id: summary.session_id, duplicate: true };
  const blobs = await storeParts(context, delivered);
  return change(context, async (tables, effects) => {
    if (await alreadyKept(tables, summary, 'lock')) return { session_id: summary.session_id, duplicate: true };
    await tables.results.addDelivery({
      session_id: summary.session_id,
      epoch: summary.epoch,
      kind: 'partial',
      digest: digestOf(delivered.header, blobs),
      summary: JSON.stringify({ ...summary, unusable: summary.outcome } satisfies SessionSummary),
      trajectory_ref: blobs.trajectory?.ref ?? null,
      completions_ref: blobs.completions?.ref ?? null,
      artifacts_ref: blobs.artifacts?.ref ?? null,
      delivered_at: isoNow(context.clock),
    });
    effects.counted.push('partials_kept');
    return { session_id: summary.session_id, duplicate: false };
  });
}

async function alreadyKept(tables: StoreTables, summary: SessionSummary, how: 'get' | 'lock'): Promise<boolean> {
  const { session_id: id, epoch } = summary;
  const row = await tables.sessions[how](id);
  if (row === undefined) throw new FloeError('not_found', `session ${id} is not known`, { session_id: id });
  for (const field of ['task_id', 'sample_index'] as const) {
    if (row[field] !== summary[field]) throw violation(field, `is ${row[field]} for session ${id}`);
  }
  if (!existed(row, summary)) {
    const message = `session ${id} never had attempt ${summary.attempt} with epoch ${epoch}`;
    throw new FloeError('not_found', message, { session_id: id, epoch, current_epoch: row.epoch });
  }
  return (await tables.results.delivery(id, epoch)) !== undefined;
}

/** Epochs are given out one by one, so every earlier one was a lease; the current one only once a node has taken it. */
function existed(row: SessionRow, { epoch, attempt }: SessionSummary): boolean {
  if (epoch < 1 || attempt < 1 || attempt > row.attempt) return false;
  return epoch < row.epoch || (epoch === row.epoch && row.node_id !== null && attempt === row.attempt);
}
