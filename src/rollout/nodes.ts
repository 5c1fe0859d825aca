import { isoNow } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { canMove, isTerminal } from '../core/session-state.ts';
import type {
  Heartbeat,
  HeartbeatReply,
  NodeInfo,
  NodeRegistration,
  NodeStageMetrics,
  SessionProgress,
  SessionStatus,
} from '../schema/index.ts';
import type { NodeRow, SessionPatch, SessionRow, StoreTables } from '../store/index.ts';
import { change, type Effects, type RolloutContext } from './context.ts';
import { engineDirectory, enginesRevision } from './engine-directory.ts';

/** A busy node reports ten times a second; a lease that is still this fresh is not written again. */
const RENEW_BELOW = 0.8;

const IDLE: NodeStageMetrics = {
  init_inflight: 0,
  ready_depth: 0,
  run_inflight: 0,
  postrun_queue_depth: 0,
  postrun_inflight: 0,
};

/** Adds a node, or takes a restarted one back. Sessions that it held before stay its own until their leases run out. */
export async function registerNode(context: RolloutContext, registration: NodeRegistration): Promise<NodeInfo> {
  const now = isoNow(context.clock);
  return context.store.transaction(async (tables) => {
    const known = await tables.nodes.get(registration.node_id);
    const row: NodeRow = {
      node_id: registration.node_id,
      instance: registration.instance,
      takeovers: known?.takeovers ?? 0,
      registration: JSON.stringify(registration),
      metrics: JSON.stringify(IDLE),
      engines: null,
      draining: 0,
      last_seen_ms: context.time.nowMs(),
      registered_at: known?.registered_at ?? now,
      last_heartbeat: now,
    };
    await tables.nodes.put(row);
    return nodeInfo(context, row, (await tables.sessions.leasedByNode()).get(row.node_id) ?? 0);
  });
}

export async function listNodes(context: RolloutContext): Promise<NodeInfo[]> {
  return context.store.transaction(async (tables) => {
    const leased = await tables.sessions.leasedByNode();
    return (await tables.nodes.list()).map((row) => nodeInfo(context, row, leased.get(row.node_id) ?? 0));
  });
}

export async function oneNode(context: RolloutContext, nodeId: string): Promise<NodeInfo> {
  return context.store.transaction(async (tables) => {
    const row = await knownNode(tables, nodeId);
    return nodeInfo(context, row, (await tables.sessions.leasedByNode()).get(nodeId) ?? 0);
  });
}

/** Takes a node out of service: it gets no more sessions. It is forgotten once it is silent and holds none. */
export async function drainNode(context: RolloutContext, nodeId: string): Promise<NodeInfo> {
  return change(context, async (tables, effects) => {
    const row = { ...(await knownNode(tables, nodeId)), draining: 1 };
    const info = nodeInfo(context, row, (await tables.sessions.leasedByNode()).get(nodeId) ?? 0);
    if (!info.healthy && info.leased_sessions === 0) await tables.nodes.remove(nodeId);
    else await tables.nodes.update(nodeId, { draining: 1 });
    effects.topics.add(`node:${nodeId}`);
    return info;
  });
}

/** Forgets drained nodes that have gone silent and hold no session. */
export async function removeDrainedNodes(context: RolloutContext): Promise<void> {
  await context.store.transaction(async (tables) => {
    const leased = await tables.sessions.leasedByNode();
    for (const row of await tables.nodes.list()) {
      const info = nodeInfo(context, row, leased.get(row.node_id) ?? 0);
      if (info.draining && !info.healthy && info.leased_sessions === 0) await tables.nodes.remove(row.node_id);
    }
  });
}

export async function knownNode(tables: StoreTables, nodeId: string): Promise<NodeRow> {
  const row = await tables.nodes.get(nodeId);
  if (row === undefined) {
    throw new FloeError('not_found', `node ${nodeId} is not registered`, { node_id: nodeId });
  }
  return row;
}

function nodeInfo(context: RolloutContext, row: NodeRow, leasedSessions: number): NodeInfo {
  return {
    ...(JSON.parse(row.registration) as NodeRegistration),
    metrics: JSON.parse(row.metrics) as NodeStageMetrics,
    healthy: isHealthy(context, row),
    draining: row.draining === 1,
    leased_sessions: leasedSessions,
    takeovers: row.takeovers,
    registered_at: row.registered_at,
    last_heartbeat: row.last_heartbeat,
  };
}

/** Whether the node has been heard of lately. */
export function isHealthy(context: RolloutContext, row: NodeRow): boolean {
  return context.time.nowMs() - row.last_seen_ms <= context.config.node_timeout_seconds * 1000;
}

/** Renews the leases that a node still holds and records how far its sessions are. Throws `not_found` for an unknown node. */
export async function recordHeartbeat(context: RolloutContext, nodeId: string, beat: Heartbeat): Promise<void> {
  await change(context, async (tables, effects) => {
    const node = await knownNode(tables, nodeId);
    const nowMs = context.time.nowMs();
    await tables.nodes.update(nodeId, {
      metrics: JSON.stringify(beat.metrics),
      ...enginesPatch(node, beat, effects),
      last_seen_ms: nowMs,
      last_heartbeat: isoNow(context.clock),
    });
    const rows = await rowsOf(tables, beat);
    const held = beat.sessions.flatMap((progress) => {
      const row = rows.get(progress.session_id);
      return row !== undefined && holds(row, nodeId, progress.epoch) ? [{ row, progress }] : [];
    });
    const leaseMs = context.config.lease_seconds * 1000;
    const aging = held.filter(({ row }) => (row.lease_expires_ms ?? 0) < nowMs + RENEW_BELOW * leaseMs);
    await tables.sessions.renew(
      aging.map(({ row }) => row.session_id),
      nowMs + leaseMs,
    );
    for (const { row, progress } of held) await recordProgress(context, tables, effects, row, progress);
  });
}

/** Written only when it has changed: it is much text, and a node tells it with every beat. */
function enginesPatch(node: NodeRow, { engines }: Heartbeat, effects: Effects): Partial<Pick<NodeRow, 'engines'>> {
  const text = engines && JSON.stringify(engines);
  if (text === null || text === node.engines) return {};
  effects.topics.add('engines');
  return { engines: text };
}

async function recordProgress(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  progress: SessionProgress,
): Promise<void> {
  const status = reachable(row.status, progress.status) ? progress.status : row.status;
  const same = status === row.status && row.turns === progress.turns && row.sampled_tokens === progress.sampled_tokens;
  if (same) return;
  const patch: SessionPatch = {
    status,
    turns: progress.turns,
    sampled_tokens: progress.sampled_tokens,
    updated_at: isoNow(context.clock),
  };
  await tables.sessions.update(row.session_id, patch);
  effects.sessionChanged({ ...row, status, turns: progress.turns, sampled_tokens: progress.sampled_tokens });
}

/** Heartbeats see a session now and then, so a report may be several moves ahead. It never goes back, and never ends a session. */
function reachable(from: SessionStatus, to: SessionStatus): boolean {
  const live = (status: SessionStatus): boolean => status !== 'QUEUED' && !isTerminal(status);
  const open: SessionStatus[] = [from];
  const seen = new Set(open);
  for (let status = open.pop(); status !== undefined; status = open.pop()) {
    for (const next of ['INIT', 'READY', 'RUNNING', 'POSTRUN'] as const) {
      if (seen.has(next) || !canMove(status, next)) continue;
      seen.add(next);
      open.push(next);
    }
  }
  return to !== from && live(to) && seen.has(to);
}

/**
 * What a node must end now. Of the sessions that it lists: cancelled ones and those whose lease it lost. Besides, sessions
 * that were cancelled before it first listed them.
 */
export async function stopsFor(
  context: RolloutContext,
  nodeId: string,
  beat: Heartbeat,
  told: ReadonlySet<string>,
): Promise<HeartbeatReply> {
  return context.store.transaction(async (tables) => {
    const node = await knownNode(tables, nodeId);
    const rows = await rowsOf(tables, beat);
    const stop: HeartbeatReply['stop'] = [];
    for (const { session_id, epoch } of beat.sessions) {
      const row = rows.get(session_id);
      if (row === undefined || row.epoch !== epoch) stop.push({ session_id, epoch, reason: 'lease_lost' });
      else if (row.status === 'CANCELLED') stop.push({ session_id, epoch, reason: 'cancelled' });
      else if (!isTerminal(row.status) && !holds(row, nodeId, epoch)) {
        stop.push({ session_id, epoch, reason: 'lease_lost' });
      }
    }
    const listed = new Set(beat.sessions.map((session) => session.session_id));
    for (const row of await tables.sessions.cancelPending(nodeId)) {
      if (listed.has(row.session_id)) continue;
      if (told.has(stopKey(row))) await tables.sessions.update(row.session_id, { cancel_requested: 0 });
      else stop.push({ session_id: row.session_id, epoch: row.epoch, reason: 'cancelled' });
    }
    const known = beat.engines?.heard ?? null;
    const news = known !== null && (await enginesRevision(tables)) > known;
    return { stop, draining: node.draining === 1, engines: news ? await engineDirectory(tables) : null };
  });
}

export function stopKey(stop: { session_id: string; epoch: number }): string {
  return `${stop.session_id}:${stop.epoch}`;
}

async function rowsOf(tables: StoreTables, beat: Heartbeat): Promise<Map<string, SessionRow>> {
  const rows = await tables.sessions.lockMany(beat.sessions.map((session) => session.session_id));
  return new Map(rows.map((row) => [row.session_id, row]));
}

function holds(row: SessionRow, nodeId: string, epoch: number): boolean {
  return row.node_id === nodeId && row.epoch === epoch && row.lease_expires_ms !== null;
}
