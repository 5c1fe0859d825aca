import { isoNow } from '../../core/clock.ts';
import { canTransition, isTerminal } from '../../core/session-state.ts';
import type { Heartbeat, HeartbeatReply, SessionProgress, SessionStatus } from '../../schema/index.ts';
import type { NodeRow, SessionRow, StoreTables } from '../../store/index.ts';
import { change, type Effects, type RolloutContext } from '../context.ts';
import { engineDirectory, enginesRevision } from '../engines/directory.ts';
import { checkOwn, ownNode } from './nodes.ts';

/** A busy node reports ten times a second; a lease that is still this fresh is not written again. */
const RENEW_BELOW = 0.8;
/** Nor is when the node was last heard of, within this time and unless it has news. */
const SEEN_EVERY_MS = 1_000;
/** Times that the node is written within the time after which it counts as silent, at least. */
const SEEN_SHARE = 1 / 4;

type Stop = HeartbeatReply['stop'][number];

/**
 * Renews the leases that a node still holds, records how far its sessions are, and says what it must end. Throws `not_found` for an
 * unknown node, and `conflict` when another process holds its id.
 */
export async function recordHeartbeat(
  context: RolloutContext,
  nodeId: string,
  beat: Heartbeat,
): Promise<HeartbeatReply> {
  return change(context, async (tables, effects) => {
    const node = await ownNode(tables, nodeId, beat.instance);
    const nowMs = await context.time.sharedNowMs(tables);
    await noteBeat(context, tables, effects, node, beat, nowMs);
    const leaseMs = context.config.lease_seconds * 1000;
    const freshUntilMs = nowMs + RENEW_BELOW * leaseMs;
    const news = await newsIn(tables, nodeId, beat, freshUntilMs, 'lock');
    const held = news.flatMap(({ told, row }) =>
      row !== undefined && holds(row, nodeId, told.epoch) ? [{ told, row }] : [],
    );
    const aging = held.filter(({ row }) => (row.lease_expires_ms ?? 0) < freshUntilMs);
    await tables.sessions.renew(
      aging.map(({ row }) => row.session_id),
      nowMs + leaseMs,
    );
    const moved = held.flatMap(({ told, row }) => {
      const after = movedBy(row, told);
      if (after !== null) effects.sessionChanged(after, null, row.status);
      return after ?? [];
    });
    if (moved.length > 0) await tables.sessions.recordProgress(moved, isoNow(context.clock));
    return replyTo(tables, node, beat, news, (ids) => letGo(tables, ids));
  });
}

/** What a node must end that has told nothing new. Throws as {@link recordHeartbeat}. */
export async function lookForStops(context: RolloutContext, nodeId: string, beat: Heartbeat): Promise<HeartbeatReply> {
  const unlisted: string[] = [];
  const reply = await context.store.read(async (tables) => {
    const node = checkOwn(await tables.nodes.get(nodeId), nodeId, beat.instance);
    const news = await newsIn(tables, nodeId, beat, 0, 'get');
    unlisted.length = 0;
    return replyTo(tables, node, beat, news, async (ids) => void unlisted.push(...ids));
  });
  if (unlisted.length > 0) await context.store.transaction((tables) => letGo(tables, unlisted));
  return reply;
}

/** What a node reports of a session that is stored otherwise. */
type News = { readonly told: SessionProgress; readonly row: SessionRow | undefined };

/** A node reports all that it has with every beat; only what is not as it says is loaded. */
async function newsIn(
  tables: StoreTables,
  nodeId: string,
  { sessions }: Heartbeat,
  freshUntilMs: number,
  how: 'get' | 'lock',
): Promise<News[]> {
  if (sessions.length === 0) return [];
  const ids = new Set(await tables.sessions.differing(nodeId, sessions, freshUntilMs));
  if (ids.size === 0) return [];
  const rows = await (how === 'lock' ? tables.sessions.lockMany([...ids]) : tables.sessions.getMany([...ids]));
  const byId = new Map(rows.map((row) => [row.session_id, row]));
  // A node may still be ending one epoch of a session while it runs the next. Of one epoch told twice, the later counts.
  const listed = sessions.filter(({ session_id: id }) => ids.has(id));
  const told = new Map(listed.map((one) => [`${one.session_id}/${one.epoch}`, one]));
  return [...told.values()].map((one) => ({ told: one, row: byId.get(one.session_id) }));
}

/** Written only when it has changed or some time has passed: a node tells it with every beat. */
async function noteBeat(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  node: NodeRow,
  beat: Heartbeat,
  nowMs: number,
): Promise<void> {
  const metrics = JSON.stringify(beat.metrics);
  const engines = beat.engines === null ? node.engines : JSON.stringify(beat.engines);
  if (engines !== node.engines) effects.topics.add('engines');
  const everyMs = Math.min(SEEN_EVERY_MS, SEEN_SHARE * context.config.node_timeout_seconds * 1000);
  const same = metrics === node.metrics && engines === node.engines && beat.refuses === node.refuses;
  if (same && nowMs - node.last_seen_ms < everyMs) return;
  await tables.nodes.update(node.node_id, {
    metrics,
    refuses: beat.refuses,
    // Much text; it seldom changes.
    ...(engines === node.engines ? {} : { engines }),
    last_seen_ms: nowMs,
    last_heartbeat: isoNow(context.clock),
  });
}

async function replyTo(
  tables: StoreTables,
  node: NodeRow,
  beat: Heartbeat,
  news: readonly News[],
  letGoOf: (sessionIds: readonly string[]) => Promise<void>,
): Promise<HeartbeatReply> {
  const stop = news.flatMap(({ told, row }): Stop[] => {
    const reason = whyStop(row, node.node_id, told.epoch);
    return reason === null ? [] : [{ session_id: told.session_id, epoch: told.epoch, reason }];
  });
  const listed = new Set(beat.sessions.map((session) => session.session_id));
  // Cancelled before the node first listed it, or ended by now. Told once: should the node come to list it, it is told again.
  const unlisted = (await tables.sessions.cancelPending(node.node_id)).filter((row) => !listed.has(row.session_id));
  stop.push(...unlisted.map(({ session_id, epoch }): Stop => ({ session_id, epoch, reason: 'cancelled' })));
  if (unlisted.length > 0) await letGoOf(unlisted.map((row) => row.session_id));
  const heard = beat.engines?.heard ?? null;
  const changed = heard !== null && (await enginesRevision(tables)) > heard;
  return { stop, draining: node.draining === 1, engines: changed ? await engineDirectory(tables) : null };
}

async function letGo(tables: StoreTables, sessionIds: readonly string[]): Promise<void> {
  for (const id of sessionIds) await tables.sessions.update(id, { cancel_requested: 0 });
}

/** Why a node must end a session that it lists; null: it need not, or has ended it already. */
function whyStop(row: SessionRow | undefined, nodeId: string, epoch: number): Stop['reason'] | null {
  if (row === undefined || row.epoch !== epoch) return 'lease_lost';
  if (row.status === 'CANCELLED') return 'cancelled';
  return isTerminal(row.status) || holds(row, nodeId, epoch) ? null : 'lease_lost';
}

function holds(row: SessionRow, nodeId: string, epoch: number): boolean {
  return row.node_id === nodeId && row.epoch === epoch && row.lease_expires_ms !== null;
}

/** The session as the node has it, if that is news. */
function movedBy(row: SessionRow, told: SessionProgress): SessionRow | null {
  const { turns, sampled_tokens } = told;
  const status = reachable(row.status, told.status) ? told.status : row.status;
  const same = status === row.status && turns === row.turns && sampled_tokens === row.sampled_tokens;
  return same ? null : { ...row, status, turns, sampled_tokens };
}

/** Heartbeats see a session now and then, so a report may be several moves ahead. It never goes back, and never ends a session. */
function reachable(from: SessionStatus, to: SessionStatus): boolean {
  const live = (status: SessionStatus): boolean => status !== 'QUEUED' && !isTerminal(status);
  const open: SessionStatus[] = [from];
  const seen = new Set(open);
  for (let status = open.pop(); status !== undefined; status = open.pop()) {
    for (const next of ['INIT', 'READY', 'RUNNING', 'POSTRUN'] as const) {
      if (seen.has(next) || !canTransition(status, next)) continue;
      seen.add(next);
      open.push(next);
    }
  }
  return to !== from && live(to) && seen.has(to);
}
