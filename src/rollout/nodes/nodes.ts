import { FloeError } from '../../core/errors.ts';
import type { NodeInfo, NodeRegistration, NodeStageMetrics } from '../../schema/index.ts';
import type { NodeRow, StoreTables } from '../../store/index.ts';
import { change, type RolloutContext } from '../context.ts';

/** The field that tells the processes of a node id apart. */
const TAKEN_OVER = 'instance';

export async function listNodes(context: RolloutContext): Promise<NodeInfo[]> {
  return context.store.read(async (tables) => {
    const leased = await tables.sessions.leasedByNode();
    return (await tables.nodes.list()).map((row) => nodeInfo(context, row, leased.get(row.node_id) ?? 0));
  });
}

export async function oneNode(context: RolloutContext, nodeId: string): Promise<NodeInfo> {
  return context.store.read(async (tables) => {
    const row = known(await tables.nodes.get(nodeId), nodeId);
    return nodeInfo(context, row, await tables.sessions.countHeldBy(nodeId));
  });
}

/** Takes a node out of service: it gets no more sessions. It is forgotten once it is silent and holds none. */
export async function drainNode(context: RolloutContext, nodeId: string): Promise<NodeInfo> {
  return change(context, async (tables, effects) => {
    const row = { ...known(await tables.nodes.lock(nodeId), nodeId), draining: 1 };
    const info = nodeInfo(context, row, await tables.sessions.countHeldBy(nodeId));
    if (!info.healthy && info.leased_sessions === 0) await tables.nodes.remove(nodeId);
    else await tables.nodes.update(nodeId, { draining: 1 });
    effects.topics.add(`node:${nodeId}`);
    return info;
  });
}

/** Forgets drained nodes that have gone silent and hold no session. */
export async function removeDrainedNodes(context: RolloutContext): Promise<void> {
  const gone = (row: NodeRow): boolean => row.draining === 1 && !isHealthy(context, row);
  const found = (await context.store.read((tables) => tables.nodes.list())).filter(gone);
  for (const { node_id: nodeId } of found) {
    await context.store.transaction(async (tables) => {
      const row = await tables.nodes.lock(nodeId);
      if (row === undefined || !gone(row) || (await tables.sessions.countHeldBy(nodeId)) > 0) return;
      await tables.nodes.remove(nodeId);
    });
  }
}

/**
 * Locks the node for the process that calls. Throws `not_found` for an unknown node, and `conflict` when another process has
 * registered with its id since.
 */
export async function ownNode(tables: StoreTables, nodeId: string, instance: string): Promise<NodeRow> {
  return checkOwn(await tables.nodes.lock(nodeId), nodeId, instance);
}

/** Throws as {@link ownNode}. */
export function checkOwn(row: NodeRow | undefined, nodeId: string, instance: string): NodeRow {
  const node = known(row, nodeId);
  if (node.instance === instance) return node;
  const message = `instance: another process registered as node ${nodeId} after this one, which must stop; give each node an id of its own`;
  throw new FloeError('conflict', message, { field: TAKEN_OVER, node_id: nodeId });
}

/** Whether a call was refused because another process holds the node. */
export function isFenced(thrown: unknown): boolean {
  return FloeError.is(thrown) && thrown.code === 'conflict' && thrown.details.field === TAKEN_OVER;
}

function known(row: NodeRow | undefined, nodeId: string): NodeRow {
  if (row === undefined) throw new FloeError('not_found', `node ${nodeId} is not registered`, { node_id: nodeId });
  return row;
}

export function nodeInfo(context: RolloutContext, row: NodeRow, leasedSessions: number): NodeInfo {
  return {
    ...(JSON.parse(row.registration) as NodeRegistration),
    metrics: JSON.parse(row.metrics) as NodeStageMetrics,
    healthy: isHealthy(context, row),
    draining: row.draining === 1,
    refuses: row.refuses,
    leased_sessions: leasedSessions,
    takeovers: row.takeovers,
    registered_at: row.registered_at,
    last_heartbeat: row.last_heartbeat,
  };
}

/** Whether the node would take a session. */
export function takesSessions(context: RolloutContext, row: NodeRow): boolean {
  return row.draining === 0 && row.refuses === null && isHealthy(context, row);
}

/** Whether the node has been heard of lately. */
export function isHealthy(context: RolloutContext, row: NodeRow): boolean {
  return context.time.nowMs() - row.last_seen_ms <= context.config.node_timeout_seconds * 1000;
}
