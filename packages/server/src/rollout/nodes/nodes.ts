import { FloeError } from '@floe-rl/core';
import type { NodeInfo, NodeRegistration, NodeStageMetrics } from '@floe-rl/core/schema';
import type { HeldSessions, NodeRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { runTransaction } from '../transaction.ts';

/**
 * Name of the field that identifies the calling process in the calls of a node. When another process has taken over the node id, the error
 * names this field.
 */
const FENCED_FIELD = 'instance';

/** The held sessions of a node to which no session is leased. */
export const NONE_HELD: HeldSessions = { count: 0, memoryMb: 0 };

export async function listNodes(context: RolloutContext): Promise<NodeInfo[]> {
  return context.store.read(async (tables) => {
    const leased = await tables.sessions.leasedByNode();
    return (await tables.nodes.list()).map((row) => nodeInfo(context, row, leased.get(row.node_id) ?? NONE_HELD));
  });
}

/** Returns the state of a node. Throws `not_found` for an unknown node. */
export async function readNode(context: RolloutContext, nodeId: string): Promise<NodeInfo> {
  return context.store.read(async (tables) => {
    const row = registered(await tables.nodes.get(nodeId), nodeId);
    return nodeInfo(context, row, await tables.sessions.heldBy(nodeId));
  });
}

/**
 * Starts to drain a node: it gets no more sessions, and is removed once it sends no heartbeats and holds no session. Throws `not_found` for
 * an unknown node.
 */
export async function drainNode(context: RolloutContext, nodeId: string): Promise<NodeInfo> {
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const row = { ...registered(await tables.nodes.lock(nodeId), nodeId), draining: 1 };
    const info = nodeInfo(context, row, await tables.sessions.heldBy(nodeId));
    if (!info.healthy && info.leased_sessions === 0) await tables.nodes.remove(nodeId);
    else await tables.nodes.update(nodeId, { draining: 1 });
    transaction.wake(`node:${nodeId}`);
    return info;
  });
}

/** Removes nodes that were drained, send no more heartbeats and hold no session. */
export async function removeDrainedNodes(context: RolloutContext): Promise<void> {
  const isDone = (row: NodeRow): boolean => row.draining === 1 && !isHealthy(context, row);
  const done = (await context.store.read((tables) => tables.nodes.draining())).filter(isDone);
  for (const { node_id: nodeId } of done) {
    await context.store.transaction(async (tables) => {
      const row = await tables.nodes.lock(nodeId);
      if (row === undefined || !isDone(row) || (await tables.sessions.heldBy(nodeId)).count > 0) return;
      await tables.nodes.remove(nodeId);
    });
  }
}

/**
 * Locks the row of a node whose process makes a call, and returns it. Throws `not_found` for an unknown node, and `conflict` when another
 * process has taken the node id over.
 */
export async function ownNode(tables: StoreTables, nodeId: string, instance: string): Promise<NodeRow> {
  return checkOwner(await tables.nodes.lock(nodeId), nodeId, instance);
}

/**
 * Checks that a node's row belongs to the calling process `instance`, and returns it. Throws `not_found` when `row` is `undefined`, and
 * `conflict` when another process has taken over the node id.
 */
export function checkOwner(row: NodeRow | undefined, nodeId: string, instance: string): NodeRow {
  const node = registered(row, nodeId);
  if (node.instance === instance) return node;
  const message = `instance: another process registered as node ${nodeId} after this one, so this one must stop; if both are to run, give each its own node id`;
  throw new FloeError('conflict', message, { field: FENCED_FIELD, node_id: nodeId });
}

/** Whether the error means that a call was refused because another process has taken over the node id. */
export function isFenced(thrown: unknown): boolean {
  return FloeError.is(thrown) && thrown.code === 'conflict' && thrown.details.field === FENCED_FIELD;
}

function registered(row: NodeRow | undefined, nodeId: string): NodeRow {
  if (row === undefined) throw new FloeError('not_found', `node ${nodeId} is not registered`, { node_id: nodeId });
  return row;
}

export function nodeInfo(context: RolloutContext, row: NodeRow, held: HeldSessions): NodeInfo {
  return {
    ...(JSON.parse(row.registration) as NodeRegistration),
    metrics: JSON.parse(row.metrics) as NodeStageMetrics,
    healthy: isHealthy(context, row),
    draining: row.draining === 1,
    refuses: row.refuses,
    leased_sessions: held.count,
    leased_memory_mb: held.memoryMb,
    takeovers: row.takeovers,
    registered_at: row.registered_at,
    last_heartbeat: row.last_heartbeat,
  };
}

/** Whether the node has sent a heartbeat within `node_timeout_seconds`. */
export function isHealthy(context: RolloutContext, row: NodeRow): boolean {
  return row.last_seen_ms >= healthySinceMs(context);
}

/** Returns the service time since which a node must have sent a heartbeat to count as healthy. */
export function healthySinceMs({ time, config }: RolloutContext): number {
  return time.nowMs() - config.node_timeout_seconds * 1000;
}
