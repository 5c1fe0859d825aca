import { FloeError } from '@floe-rl/core';
import type { AttemptView, SessionSummary, SessionView } from '@floe-rl/core/schema';
import type { DeliveryRow, SessionRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { unknownTask } from '../tasks/views.ts';

const PARTS = ['trajectory', 'completions', 'artifacts'] as const;

export type PartName = (typeof PARTS)[number];

/** Maximum number of sessions that one query reads, because a task may have 100,000 of them. */
const PAGE_SESSIONS = 200;

type ViewWithoutSummary = Omit<SessionView, 'summary'>;

function withoutSummary(row: SessionRow): ViewWithoutSummary {
  return {
    session_id: row.session_id,
    task_id: row.task_id,
    sample_index: row.sample_index,
    status: row.status,
    attempt: row.attempt,
    epoch: row.epoch,
    node_id: row.node_id,
    turns: row.turns,
    sampled_tokens: row.sampled_tokens,
    created_at: row.created_at,
    updated_at: row.updated_at,
  };
}

export function sessionView(row: SessionRow): SessionView {
  const summary = row.summary === null ? null : (JSON.parse(row.summary) as SessionSummary);
  return { ...withoutSummary(row), summary };
}

/** Yields the SessionView of every session of a task as JSON text, ordered by sample index. */
export async function* sessionViewTexts(context: RolloutContext, taskId: string): AsyncGenerator<string> {
  for (let after = -1; ; ) {
    const rows = await context.store.read((tables) => tables.sessions.ofTask(taskId, { after, limit: PAGE_SESSIONS }));
    for (const row of rows) yield `${JSON.stringify(withoutSummary(row)).slice(0, -1)},"summary":${row.summary}}`;
    const last = rows.at(-1);
    if (last === undefined || rows.length < PAGE_SESSIONS) return;
    after = last.sample_index;
  }
}

/** Throws `not_found` for a task that does not exist. */
export async function checkTaskExists(context: RolloutContext, taskId: string): Promise<void> {
  const task = await context.store.read((tables) => tables.tasks.get(taskId));
  if (task === undefined) throw unknownTask(taskId);
}

/** Returns a session's state as the API shows it. Throws `not_found` for an unknown session. */
export async function readSession(context: RolloutContext, sessionId: string): Promise<SessionView> {
  return sessionView(await context.store.read((tables) => knownSession(tables, sessionId)));
}

/**
 * Returns everything that nodes have delivered for the attempts of a session, oldest first. Throws `not_found` for an unknown session.
 */
export async function readAttempts(context: RolloutContext, sessionId: string): Promise<AttemptView[]> {
  const deliveries = await context.store.read(async (tables) =>
    readDeliveries(tables, await knownSession(tables, sessionId)),
  );
  return deliveries.map((delivery) => {
    const { summary } = delivery;
    return {
      attempt: summary.attempt,
      epoch: delivery.epoch,
      kind: delivery.kind,
      delivered_at: delivery.delivered_at,
      summary,
      parts: PARTS.filter((part) => delivery[`${part}_ref`] !== null),
    };
  });
}

/**
 * A delivery with its summary and its references. They are in the result's row when the delivery is the result of the session, otherwise in
 * the delivery's row.
 */
type Delivery = Omit<DeliveryRow, 'summary'> & { readonly summary: SessionSummary };

async function readDeliveries(tables: StoreTables, row: SessionRow): Promise<Delivery[]> {
  const [deliveries, result] = [
    await tables.results.deliveriesOf(row.session_id),
    await tables.results.ofSession(row.session_id),
  ];
  return deliveries.map(({ summary, ...delivery }) => {
    if (summary !== null) return { ...delivery, summary: JSON.parse(summary) as SessionSummary };
    if (result === undefined) throw new Error(`session ${row.session_id} has a delivered result that is not stored`);
    const { trajectory_ref, completions_ref, artifacts_ref } = result;
    const inResult = { trajectory_ref, completions_ref, artifacts_ref };
    return { ...delivery, ...inResult, summary: JSON.parse(result.summary) as SessionSummary };
  });
}

/**
 * Returns one part of a finished session's result, or with `attempt` the part that this attempt delivered. The bytes are returned as the node
 * delivered them. Throws `not_found` when the session does not exist or has no such part.
 */
export async function readPart(
  context: RolloutContext,
  sessionId: string,
  part: PartName,
  attempt: number | undefined,
): Promise<Buffer> {
  const { row, ref } = await context.store.read(async (tables) => {
    const session = await knownSession(tables, sessionId);
    const found =
      attempt === undefined
        ? (await tables.results.ofSession(sessionId))?.[`${part}_ref`]
        : attemptPart(await readDeliveries(tables, session), attempt, part);
    return { row: session, ref: found };
  });
  if (ref !== null && ref !== undefined) return context.blobs.get(ref);
  throw missingPart(row, part, attempt);
}

/**
 * Returns the blob reference of one part of an attempt's result; `null` when the attempt delivered no such part. An attempt that was leased
 * twice may have several deliveries. The newest of them counts.
 */
function attemptPart(deliveries: readonly Delivery[], attempt: number, part: PartName): string | null {
  const withPart = deliveries.filter(
    ({ summary, ...delivery }) => delivery[`${part}_ref`] !== null && summary.attempt === attempt,
  );
  return withPart.at(-1)?.[`${part}_ref`] ?? null;
}

function missingPart(row: SessionRow, part: PartName, attempt: number | undefined): FloeError {
  const id = row.session_id;
  if (attempt !== undefined) {
    const message = `attempt ${attempt} of session ${id} has no ${part}`;
    return new FloeError('not_found', message, { session_id: id, attempt });
  }
  const reason = part === 'artifacts' ? artifactsOmission(row) : null;
  const message = `session ${id} is ${row.status} and has no ${part}${reason === null ? '' : `: ${reason}`}`;
  return new FloeError('not_found', message, { session_id: id, status: row.status, reason });
}

/** Returns why the node kept no artifacts of the session; `null` when it reported no reason. */
function artifactsOmission(row: SessionRow): string | null {
  if (row.summary === null) return null;
  return (JSON.parse(row.summary) as SessionSummary).artifacts?.omitted ?? null;
}

/** Returns the row of a session. Throws `not_found` for an unknown session. */
async function knownSession(tables: StoreTables, sessionId: string): Promise<SessionRow> {
  const row = await tables.sessions.get(sessionId);
  if (row === undefined) throw unknownSession(sessionId);
  return row;
}

export function unknownSession(sessionId: string): FloeError {
  return new FloeError('not_found', `session ${sessionId} is not known`, { session_id: sessionId });
}
