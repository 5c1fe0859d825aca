import { isoNow } from '@floe-rl/core';
import type { NodeInfo, NodeRegistration, NodeStageMetrics } from '@floe-rl/core/schema';
import type { NodeRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { takeBackSessionsOf } from '../sessions/retry.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { isFenced, nodeInfo } from './nodes.ts';

const IDLE: NodeStageMetrics = {
  init_inflight: 0,
  ready_depth: 0,
  run_inflight: 0,
  postrun_queue_depth: 0,
  postrun_inflight: 0,
};

/**
 * Maximum number of stored registrations of processes that want to take over one node id from the process that holds it. When there are
 * more, the oldest are dropped.
 */
const MAX_CLAIMS = 8;

/**
 * Registers a node. A process that registers again keeps its sessions. When another process holds the node id, the registration is only
 * stored, because it may be a delayed message from a process that has died since. The new process takes over the id with its next call (see
 * {@link takeOver}).
 */
export async function registerNode(context: RolloutContext, registration: NodeRegistration): Promise<NodeInfo> {
  const { node_id: nodeId, instance } = registration;
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const before = await tables.nodes.lock(nodeId);
    const held = await tables.sessions.heldBy(nodeId);
    if (before !== undefined && before.instance !== instance) {
      const claims = [...claimsOf(before).filter((claim) => claim.instance !== instance), registration];
      await tables.nodes.update(nodeId, { claims: JSON.stringify(claims.slice(-MAX_CLAIMS)) });
      return nodeInfo(context, before, held);
    }
    const row = await rowOf(transaction, registration, before);
    await tables.nodes.put(row);
    return nodeInfo(context, row, held);
  });
}

/**
 * Runs a call of a node's process. A call may be refused because another process holds the node id. If this process has registered for the id
 * since, it takes over the id and the call is repeated. Otherwise the refusal is counted and thrown.
 */
export async function asOwner<T>(
  context: RolloutContext,
  nodeId: string,
  instance: string,
  call: () => Promise<T>,
): Promise<T> {
  try {
    return await call();
  } catch (thrown) {
    if (!isFenced(thrown)) throw thrown;
    if (await takeOver(context, nodeId, instance)) return call();
    context.counters.add('stale_processes');
    throw thrown;
  }
}

/**
 * Gives a node id to a process whose stored registration is newer than the present owner's registration. The sessions of the present owner
 * return to the queue, and its later calls are refused. Returns whether `instance` now holds the id.
 */
async function takeOver(context: RolloutContext, nodeId: string, instance: string): Promise<boolean> {
  const known = await context.store.read((tables) => tables.sessions.lockHeldBy(nodeId));
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const before = await tables.nodes.lock(nodeId);
    if (before === undefined || before.instance === instance) return before !== undefined;
    const claims = claimsOf(before);
    const index = claims.findIndex((claim) => claim.instance === instance);
    const registration = claims[index];
    if (registration === undefined) return false;
    const later = claims.slice(index + 1);
    const row = await rowOf(transaction, registration, before);
    const takeovers = before.takeovers + 1;
    await tables.nodes.put({ ...row, takeovers, claims: later.length === 0 ? null : JSON.stringify(later) });
    transaction.count('takeovers');
    await takeBackSessionsOf(transaction, nodeId, known);
    // The server may hold requests of the earlier process open. Waking these requests refuses them immediately.
    transaction.wake(`node:${nodeId}`);
    transaction.wake(`capacity:${nodeId}`);
    return true;
  });
}

function claimsOf(row: NodeRow): NodeRegistration[] {
  return row.claims === null ? [] : (JSON.parse(row.claims) as NodeRegistration[]);
}

/** Returns the row of a node that registers now. The new row is not draining and refuses no sessions. */
async function rowOf(
  { context, tables }: Transaction,
  registration: NodeRegistration,
  before: NodeRow | undefined,
): Promise<NodeRow> {
  const now = isoNow(context.clock);
  return {
    node_id: registration.node_id,
    instance: registration.instance,
    takeovers: before?.takeovers ?? 0,
    claims: before?.claims ?? null,
    registration: JSON.stringify(registration),
    metrics: JSON.stringify(IDLE),
    engines: null,
    draining: 0,
    refuses: null,
    last_seen_ms: await context.time.sharedNowMs(tables),
    registered_at: before?.registered_at ?? now,
    last_heartbeat: now,
  };
}
