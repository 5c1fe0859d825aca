import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import { isoNow } from '../core/clock.ts';
import { decodeEnvelope } from '../core/envelope.ts';
import { FloeError } from '../core/errors.ts';
import { OUTCOMES } from '../core/outcomes.ts';
import { parseAs } from '../core/parse.ts';
import { isTerminal } from '../core/session-state.ts';
import { type DeliveryReply, type SessionSummary, sessionSummarySchema } from '../schema/index.ts';
import type { BlobRef, ResultBlobs, SessionRow, StoreTables } from '../store/index.ts';
import { change, type Effects, type RolloutContext } from './context.ts';
import { endSession, giveUp, requeue } from './endings.ts';
import { retryDelayMs } from './leases.ts';
import { knownNode } from './nodes.ts';

const PART_NAMES = ['trajectory', 'completions', 'artifacts'] as const;
const JSON_NULL = Buffer.from('null');
/** The first bytes of every gzip stream. */
const GZIP_MAGIC = Buffer.from([0x1f, 0x8b]);

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
  const envelope = decodeEnvelope(body);
  const summary = { ...parseAs(sessionSummarySchema, envelope.header, 'result header'), node_id: nodeId };
  checkConsistent(summary);
  for (const [name, bytes] of envelope.parts) checkPart(name, bytes);
  checkArtifacts(summary, envelope.parts.get('artifacts'));
  // Refuses before anything is written; the same checks hold again in the transaction that decides.
  await context.store.transaction((tables) => check(tables, nodeId, summary, null));
  const [trajectory = null, completions = null, artifacts = null] = await Promise.all(
    PART_NAMES.map((name) => putPart(context, envelope.parts.get(name))),
  );
  const blobs = { trajectory, completions, artifacts };
  const digest = digestOf(envelope.header, blobs);
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

/** Equal for equal deliveries. The blobs' names are hashes of the parts, which need not be read once more for this. */
function digestOf(header: unknown, blobs: ResultBlobs): string {
  const parts = [header, blobs.trajectory?.ref ?? null, blobs.completions?.ref ?? null];
  // A delivery that was accepted before there were artifacts keeps the digest that it was stored with.
  if (blobs.artifacts !== null) parts.push(blobs.artifacts.ref);
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex');
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

function checkConsistent(summary: SessionSummary): void {
  const expected = OUTCOMES[summary.outcome].status;
  if (summary.status !== expected) throw violation('status', `must be ${expected} for outcome ${summary.outcome}`);
}

/** What the summary says of the artifacts is what everyone else is told of them. */
function checkArtifacts(summary: SessionSummary, archive: Buffer | undefined): void {
  const bytes = archive?.length ?? 0;
  const said = summary.artifacts?.bytes ?? 0;
  if (said !== bytes) throw violation('artifacts.bytes', `is ${said}, but the part has ${bytes}`);
  if (archive !== undefined && !archive.subarray(0, GZIP_MAGIC.length).equals(GZIP_MAGIC))
    throw violation('parts.artifacts', 'must be compressed with gzip');
}

/** The trajectory is handed on inside larger JSON, one result a line, without being parsed here. Completions are opaque. */
function checkPart(name: string, bytes: Buffer): void {
  if (!PART_NAMES.some((known) => known === name)) throw violation(`parts.${name}`, 'is not a part of a result');
  if (name !== 'trajectory' || isJsonNull(bytes)) return;
  if (bytes[0] !== 0x7b || bytes[bytes.length - 1] !== 0x7d) throw violation(`parts.${name}`, 'must be a JSON object');
  if (bytes.includes(0x0a) || bytes.includes(0x0d)) throw violation(`parts.${name}`, 'must be JSON on one line');
  if (!isUtf8(bytes)) throw violation(`parts.${name}`, 'must be UTF-8');
}

function isJsonNull(bytes: Buffer): boolean {
  return bytes.length === 0 || bytes.equals(JSON_NULL);
}

function violation(path: string, message: string): FloeError {
  return new FloeError('schema_violation', `result: ${path}: ${message}`, { issues: [{ path, message }] });
}

async function putPart(context: RolloutContext, bytes: Buffer | undefined): Promise<BlobRef | null> {
  return bytes === undefined || isJsonNull(bytes) ? null : context.blobs.put(bytes);
}
