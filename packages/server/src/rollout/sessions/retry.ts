import { backoffMs, isoNow } from '@floe-rl/core';
import { OUTCOMES, retriesAfter, transition } from '@floe-rl/core/protocol';
import type { Outcome, SessionError, SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import type { SessionRow, StoreTables, TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { healthySinceMs, ownNode } from '../nodes/nodes.ts';
import { cancelReason, cancelRows, endSession, requestOf } from '../tasks/groups.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { NO_BLOBS, serverSummary } from './end.ts';

/**
 * Maximum number of expired leases that one transaction takes back, so that the loss of a large node does not block all other
 * transactions.
 */
const SWEEP_BATCH = 200;

/** The error code in the results of sessions that a node returns when it shuts down in an orderly way. */
const HANDED_BACK = 'not_ready';

/** How a session returns to the queue for its next attempt. */
export type NextAttempt = {
  readonly attempt: number;
  /** Time in milliseconds for which no node can lease the session. */
  readonly delayMs: number;
  /** The new number of attempts that the session may have. Default: unchanged. */
  readonly maxAttempts?: number;
  /** The node that may get the session only after `avoid_node_seconds`, so that other nodes come first; `null` when no node is avoided. */
  readonly avoidNode?: string | null;
};

/**
 * Whether a node returned the session because the node is shutting down. This is no failure of the session and uses up none of its
 * attempts.
 */
export function wasHandedBack(summary: SessionSummary): boolean {
  return summary.outcome === 'infra_error' && summary.error?.code === HANDED_BACK;
}

/**
 * Returns the next attempt of a session whose attempt ended with `outcome`; `null` when the session gets no further attempt and ends with that
 * outcome.
 */
export async function nextAttempt(
  transaction: Transaction,
  row: SessionRow,
  outcome: Outcome,
  task: TaskRequest,
): Promise<NextAttempt | null> {
  const { context, tables } = transaction;
  const limit = retriesAfter(outcome, task.outcome_policy);
  if (limit === 0) return null;
  const isLeft =
    row.attempt < row.max_attempts &&
    (limit === Number.POSITIVE_INFINITY || (await countEndedWith(tables, row, outcome)) < limit);
  transaction.count(isLeft ? 'retries' : 'given_up');
  if (!isLeft) return null;
  const attempt = row.attempt + 1;
  const avoidNode = OUTCOMES[outcome].retried ? await nodeToAvoid(transaction, row) : null;
  return { attempt, delayMs: retryDelayMs(context, attempt), avoidNode };
}

/**
 * Returns how many earlier attempts of a session ended with `outcome`. An attempt that lost its lease has delivered nothing and counts as
 * `infra_error`.
 */
async function countEndedWith(tables: StoreTables, row: SessionRow, outcome: Outcome): Promise<number> {
  const delivered = (await retriedDeliveries(tables, row)).map((summary) => JSON.parse(summary) as SessionSummary);
  const lost = outcome === 'infra_error' ? row.attempt - 1 - delivered.length : 0;
  return lost + delivered.filter((summary) => summary.outcome === outcome && !wasHandedBack(summary)).length;
}

/** Returns the summaries that the earlier attempts of a session delivered. An attempt that was lost with its node has delivered none. */
async function retriedDeliveries(tables: StoreTables, row: SessionRow): Promise<string[]> {
  const deliveries = await tables.results.deliveriesOf(row.session_id);
  return deliveries.flatMap(({ kind, summary }) => (kind === 'retried' && summary !== null ? [summary] : []));
}

/** Returns how many attempts of a session were lost with their nodes. The current attempt, which is lost now, is included. */
async function countNodeLosses(tables: StoreTables, row: SessionRow): Promise<number> {
  return row.attempt - (await retriedDeliveries(tables, row)).length;
}

/** Returns the node on which the session failed, so that the next attempt avoids it; `null` when no other node could take the session. */
async function nodeToAvoid({ context, tables }: Transaction, row: SessionRow): Promise<string | null> {
  const { node_id: nodeId } = row;
  return nodeId !== null && (await tables.nodes.hasOther(nodeId, healthySinceMs(context))) ? nodeId : null;
}

/** Returns the delay in milliseconds before attempt number `attempt`, which is 2 or more. */
function retryDelayMs({ config }: RolloutContext, attempt: number): number {
  const backoff = { baseMs: config.retry_backoff_seconds * 1000, maxMs: config.retry_backoff_max_seconds * 1000 };
  return backoffMs(backoff, attempt - 1);
}

/** Returns a session to the queue under the next epoch. The caller holds the session's lock. */
export async function requeueSession(transaction: Transaction, row: SessionRow, next: NextAttempt): Promise<void> {
  const { context, tables } = transaction;
  const nowMs = context.time.nowMs();
  const { avoidNode = null } = next;
  const patch = {
    status: transition(row.status, 'QUEUED'),
    attempt: next.attempt,
    max_attempts: next.maxAttempts ?? row.max_attempts,
    epoch: row.epoch + 1,
    node_id: null,
    lease_expires_ms: null,
    avoid_node: avoidNode,
    avoid_until_ms: avoidNode === null ? 0 : nowMs + next.delayMs + context.config.avoid_node_seconds * 1000,
    not_before_ms: nowMs + next.delayMs,
    queued_since_ms: nowMs,
    turns: 0,
    sampled_tokens: 0,
    updated_at: isoNow(context.clock),
  };
  await tables.sessions.update(row.session_id, patch);
  transaction.sessionChanged({ ...row, ...patch });
  transaction.wake('queue');
}

/**
 * Ends a session because of an infrastructure failure, without a result from a node. Locks the task; the caller holds the session's lock.
 * Resolves to the cursor of the session's result.
 */
export async function giveUpSession(
  transaction: Transaction,
  row: SessionRow,
  outcome: Outcome,
  error: SessionError,
): Promise<number> {
  const task = requestOf(await lockTaskOf(transaction.tables, row));
  return endSession(transaction, row, {
    task,
    summary: serverSummary(row, task, outcome, error),
    blobs: NO_BLOBS,
    epoch: row.epoch + 1,
  });
}

/**
 * Takes back the leases that have expired. Each session is retried, or ends as `infra_error` when its attempts are used up. Several
 * servers may do so concurrently, because a lease is taken back only once.
 */
export async function sweepExpired(context: RolloutContext): Promise<void> {
  // The service clock decides which leases have expired. It is first set to the latest time that a server on this store has stored.
  await context.time.persist();
  for (let count = SWEEP_BATCH; count === SWEEP_BATCH; ) {
    const expired = await context.store.read((tables) =>
      tables.sessions.lockExpired(context.time.nowMs(), SWEEP_BATCH),
    );
    count = expired.length;
    if (count > 0) await runTransaction(context, (transaction) => takeBackExpired(transaction, expired));
  }
  await context.store.transaction((tables) => tables.tombstones.removeExpired(context.time.nowMs()));
}

async function takeBackExpired(transaction: Transaction, expired: readonly SessionRow[]): Promise<void> {
  const { context, tables } = transaction;
  const nowMs = context.time.nowMs();
  await lockTasks(tables, expired);
  for (const row of await tables.sessions.lockMany(expired.map((one) => one.session_id))) {
    if (row.lease_expires_ms === null || row.lease_expires_ms > nowMs) continue;
    if (row.node_id !== null) transaction.wake(`node:${row.node_id}`);
    transaction.count('leases_expired');
    const reason = `node ${row.node_id} was silent for ${context.config.lease_seconds} s`;
    await loseAttempt(transaction, row, reason);
  }
}

/**
 * Takes back every session that is leased to a node id, because a new process has taken over the id. `known` are the sessions that were
 * leased to the id just before the transaction; their tasks are locked first.
 */
export async function takeBackSessionsOf(
  transaction: Transaction,
  nodeId: string,
  known: readonly SessionRow[],
): Promise<void> {
  const { tables } = transaction;
  await lockTasks(tables, known);
  for (const row of await tables.sessions.lockHeldBy(nodeId)) {
    await loseAttempt(transaction, row, `another process took over node ${nodeId}`);
  }
}

/**
 * Takes back sessions that a node reports as lost because the process that ran them has ended. Sessions that the node no longer holds with
 * the reported epoch stay as they are. Throws `not_found` for an unknown node, and `conflict` when another process has taken over the node
 * id.
 */
export async function takeBackLost(
  context: RolloutContext,
  nodeId: string,
  instance: string,
  lost: readonly Pick<SessionRow, 'session_id' | 'epoch'>[],
): Promise<void> {
  const epochs = new Map(lost.map(({ session_id, epoch }) => [session_id, epoch]));
  const ids = [...epochs.keys()];
  await runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    await ownNode(tables, nodeId, instance);
    await lockTasks(tables, await tables.sessions.getMany(ids));
    for (const row of await tables.sessions.lockMany(ids)) {
      const isHeld =
        row.node_id === nodeId && row.epoch === epochs.get(row.session_id) && row.lease_expires_ms !== null;
      if (isHeld) await loseAttempt(transaction, row, `a process of node ${nodeId} ended`);
    }
  });
}

/**
 * Ends an attempt whose result will no longer be accepted. The session is retried immediately, on another node if there is one. It ends as
 * `infra_error` when its attempts are used up. It also ends so when `max_node_losses` of its attempts were lost with their nodes, because then
 * the session itself may make its nodes fail. The caller holds the session's lock and, where possible, took the task's lock before that.
 */
async function loseAttempt(transaction: Transaction, row: SessionRow, reason: string): Promise<void> {
  const task = await lockTaskOf(transaction.tables, row);
  if (task.status !== 'running') {
    await cancelRows(transaction, task, [row], cancelReason(task));
    return;
  }
  const losses = await countNodeLosses(transaction.tables, row);
  // A session that its node had not begun cannot have ended the node. An example is a session that was leased to a suspended node.
  const mayBeCause = row.status !== 'LEASED' && losses >= transaction.context.config.max_node_losses;
  if (row.attempt < row.max_attempts && mayBeCause) {
    transaction.count('given_up');
    await giveUpSession(transaction, row, 'infra_error', quarantineError(row, reason, losses));
    return;
  }
  const next = await nextAttempt(transaction, row, 'infra_error', requestOf(task));
  // No further delay is added, because the session has already waited until its lease was taken back.
  if (next !== null) await requeueSession(transaction, row, { ...next, delayMs: 0 });
  else await giveUpSession(transaction, row, 'infra_error', lostError(row, reason));
}

/**
 * Locks the tasks of several sessions in the order of their ids, as every other transaction does, so that two transactions cannot deadlock.
 */
async function lockTasks(tables: StoreTables, rows: readonly SessionRow[]): Promise<void> {
  for (const taskId of [...new Set(rows.map((row) => row.task_id))].sort()) await tables.tasks.lock(taskId);
}

async function lockTaskOf(tables: StoreTables, row: SessionRow): Promise<TaskRow> {
  const task = await tables.tasks.lock(row.task_id);
  if (task === undefined) throw new Error(`session ${row.session_id} names task ${row.task_id}, which is not stored`);
  return task;
}

/** Creates the error that a session ends with when too many of its attempts were lost with their nodes. */
function quarantineError(row: SessionRow, reason: string, losses: number): SessionError {
  const message =
    `${reason} in attempt ${row.attempt}; ${losses} attempts of session ${row.session_id} were lost with their nodes, so it is not ` +
    'leased again, because it may be what ends them: see the logs of the nodes, and max_node_losses of the server';
  const details = { node_id: row.node_id, attempts: row.attempt, node_losses: losses };
  return { code: 'node_died', message, stage: row.status, details };
}

/** Creates the error that a session ends with when the attempt that lost its lease was the session's last one. */
function lostError(row: SessionRow, reason: string): SessionError {
  return {
    code: 'peer_unreachable',
    message: `${reason} in attempt ${row.attempt}, the last one`,
    stage: row.status,
    details: { node_id: row.node_id, attempts: row.attempt },
  };
}
