import { isoNow } from '@floe-rl/core';
import { canTransition, isTerminal } from '@floe-rl/core/protocol';
import type { Heartbeat, HeartbeatReply, SessionProgress, SessionStatus } from '@floe-rl/core/schema';
import type { NodeRow, SessionRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { engineReportOf, enginesRevision, readEngineDirectory, reportToStore } from '../engines/directory.ts';
import { takeBackLost } from '../sessions/retry.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { checkOwner, ownNode } from './nodes.ts';

/**
 * A lease is renewed only when less than this share of its time is left. Renewing it with every heartbeat would cost too many writes,
 * because a busy node sends ten heartbeats a second.
 */
const RENEW_BELOW_SHARE = 0.8;
/** Maximum age of the last-seen time in a node's row. A heartbeat that reports nothing new updates the row only when the time is older. */
const LAST_SEEN_INTERVAL_MS = 1_000;
/** Upper bound for {@link LAST_SEEN_INTERVAL_MS}, as a share of the time after which a node counts as silent. */
const LAST_SEEN_SHARE = 1 / 4;

type Stop = HeartbeatReply['stop'][number];

/**
 * Handles a heartbeat: renews the leases that the node still holds, records the progress of its sessions, and returns which of them it must
 * stop. Throws `not_found` for an unknown node, and `conflict` when another process has taken over the node id.
 */
export async function recordHeartbeat(
  context: RolloutContext,
  nodeId: string,
  beat: Heartbeat,
): Promise<HeartbeatReply> {
  const { lost = [] } = beat;
  if (lost.length > 0) await takeBackLost(context, nodeId, beat.instance, lost);
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const node = await ownNode(tables, nodeId, beat.instance);
    const nowMs = await context.time.sharedNowMs(tables);
    await recordNode(transaction, node, beat, nowMs);
    const leaseMs = context.config.lease_seconds * 1000;
    const freshUntilMs = nowMs + RENEW_BELOW_SHARE * leaseMs;
    const differences = await findDifferences(tables, nodeId, beat, freshUntilMs, 'lockMany');
    const held = differences.flatMap(({ reported, row }) =>
      row !== undefined && holds(row, nodeId, reported.epoch) ? [{ reported, row }] : [],
    );
    const aging = held.filter(({ row }) => (row.lease_expires_ms ?? 0) < freshUntilMs);
    await tables.sessions.renew(
      aging.map(({ row }) => row.session_id),
      nowMs + leaseMs,
    );
    const progressed = held.flatMap(({ reported, row }) => {
      const after = progressedRow(row, reported);
      if (after !== null) transaction.sessionChanged(after, null, row.status, reported.last_reply);
      return after ?? [];
    });
    if (progressed.length > 0) await tables.sessions.recordProgress(progressed, isoNow(context.clock));
    return replyTo(tables, node, beat, differences, (ids) => clearCancelRequests(tables, ids));
  });
}

/**
 * Returns the sessions that a node must stop, for a heartbeat that was already recorded and whose reply is being held. Throws as {@link
 * recordHeartbeat}.
 */
export async function findStops(context: RolloutContext, nodeId: string, beat: Heartbeat): Promise<HeartbeatReply> {
  const unlisted: string[] = [];
  const reply = await context.store.read(async (tables) => {
    const node = checkOwner(await tables.nodes.get(nodeId), nodeId, beat.instance);
    const differences = await findDifferences(tables, nodeId, beat, 0, 'getMany');
    unlisted.length = 0;
    return replyTo(tables, node, beat, differences, async (ids) => void unlisted.push(...ids));
  });
  if (unlisted.length > 0) await context.store.transaction((tables) => clearCancelRequests(tables, unlisted));
  return reply;
}

/**
 * A session that a node reports in another state than the stored one. `row` is the stored session; `undefined` when the session is
 * unknown.
 */
type Difference = { readonly reported: SessionProgress; readonly row: SessionRow | undefined };

/**
 * Returns the sessions whose report differs from the stored row. Only the rows of these sessions are loaded, because every heartbeat lists
 * all sessions of the node and few of them differ.
 */
async function findDifferences(
  tables: StoreTables,
  nodeId: string,
  { sessions }: Heartbeat,
  freshUntilMs: number,
  read: 'getMany' | 'lockMany',
): Promise<Difference[]> {
  if (sessions.length === 0) return [];
  const ids = new Set(await tables.sessions.differing(nodeId, sessions, freshUntilMs));
  if (ids.size === 0) return [];
  const rows = await tables.sessions[read]([...ids]);
  const byId = new Map(rows.map((row) => [row.session_id, row]));
  // A node may still be ending a session under an old lease (epoch) while it runs the same session under the next one, so both entries are
  // kept. If one epoch is listed twice, its last entry counts.
  const listed = sessions.filter(({ session_id: id }) => ids.has(id));
  const byEpoch = new Map(listed.map((one) => [`${one.session_id}/${one.epoch}`, one]));
  return [...byEpoch.values()].map((reported) => ({ reported, row: byId.get(reported.session_id) }));
}

/**
 * Writes the state of the node's engines if the heartbeat has it. Writes the node's row, but only when its content has changed, or when its
 * latest update is so old that the node would soon count as silent.
 */
async function recordNode(transaction: Transaction, node: NodeRow, beat: Heartbeat, nowMs: number): Promise<void> {
  const { context, tables } = transaction;
  const metrics = JSON.stringify(beat.metrics);
  const earlier = engineReportOf(node);
  const report = beat.engines === null ? earlier : reportToStore(beat.engines, earlier);
  const engines = report === null ? null : JSON.stringify(report);
  const info = beat.engines?.info ?? null;
  const isEmpty = info?.length === 0 && (earlier?.engines.known ?? 0) === 0;
  if (info !== null && !isEmpty) await tables.nodes.putEngineInfo(node.node_id, JSON.stringify(info));
  if (engines !== node.engines) transaction.wake('engines');
  const intervalMs = Math.min(LAST_SEEN_INTERVAL_MS, LAST_SEEN_SHARE * context.config.node_timeout_seconds * 1000);
  const isSame = metrics === node.metrics && engines === node.engines && beat.refuses === node.refuses;
  if (isSame && nowMs - node.last_seen_ms < intervalMs) return;
  await tables.nodes.update(node.node_id, {
    metrics,
    refuses: beat.refuses,
    engines,
    last_seen_ms: nowMs,
    last_heartbeat: isoNow(context.clock),
  });
}

async function replyTo(
  tables: StoreTables,
  node: NodeRow,
  beat: Heartbeat,
  differences: readonly Difference[],
  clearRequests: (sessionIds: readonly string[]) => Promise<void>,
): Promise<HeartbeatReply> {
  const stop = differences.flatMap(({ reported, row }): Stop[] => {
    const reason = stopReason(row, node.node_id, reported.epoch);
    return reason === null ? [] : [{ session_id: reported.session_id, epoch: reported.epoch, reason }];
  });
  const listed = new Set(beat.sessions.map((session) => session.session_id));
  // Cancelled sessions that the node does not list: it has not started them yet, or has already ended them. The order to stop such a
  // session is sent once. If a later heartbeat lists the session, the order is sent again.
  const unlisted = (await tables.sessions.cancelPending(node.node_id)).filter((row) => !listed.has(row.session_id));
  stop.push(...unlisted.map(({ session_id, epoch }): Stop => ({ session_id, epoch, reason: 'cancelled' })));
  if (unlisted.length > 0) await clearRequests(unlisted.map((row) => row.session_id));
  const knownRevision = beat.engines?.heard ?? null;
  const hasNewer = knownRevision !== null && (await enginesRevision(tables)) > knownRevision;
  return { stop, draining: node.draining === 1, engines: hasNewer ? await readEngineDirectory(tables) : null };
}

async function clearCancelRequests(tables: StoreTables, sessionIds: readonly string[]): Promise<void> {
  for (const id of sessionIds) await tables.sessions.update(id, { cancel_requested: 0 });
}

/**
 * Returns why a node must stop a session that its heartbeat lists; `null` when the node holds the session's lease, or when the node has
 * already delivered the session's result.
 */
function stopReason(row: SessionRow | undefined, nodeId: string, epoch: number): Stop['reason'] | null {
  if (row === undefined || row.epoch !== epoch) return 'lease_lost';
  if (row.status === 'CANCELLED') return 'cancelled';
  return isTerminal(row.status) || holds(row, nodeId, epoch) ? null : 'lease_lost';
}

function holds(row: SessionRow, nodeId: string, epoch: number): boolean {
  return row.node_id === nodeId && row.epoch === epoch && row.lease_expires_ms !== null;
}

/** Returns the session's row with the progress that the node reports; `null` when nothing has changed. */
function progressedRow(row: SessionRow, reported: SessionProgress): SessionRow | null {
  const { turns, sampled_tokens } = reported;
  const status = isReachable(row.status, reported.status) ? reported.status : row.status;
  const isSame = status === row.status && turns === row.turns && sampled_tokens === row.sampled_tokens;
  return isSame ? null : { ...row, status, turns, sampled_tokens };
}

/**
 * Whether a session can have moved from status `from` to status `to` between two heartbeats, possibly through several statuses. A heartbeat
 * never moves a session back, and never ends it.
 */
function isReachable(from: SessionStatus, to: SessionStatus): boolean {
  const isLive = (status: SessionStatus): boolean => status !== 'QUEUED' && !isTerminal(status);
  const open: SessionStatus[] = [from];
  const seen = new Set(open);
  for (let status = open.pop(); status !== undefined; status = open.pop()) {
    for (const next of ['INIT', 'READY', 'RUNNING', 'POSTRUN'] as const) {
      if (seen.has(next) || !canTransition(status, next)) continue;
      seen.add(next);
      open.push(next);
    }
  }
  return to !== from && isLive(to) && seen.has(to);
}
