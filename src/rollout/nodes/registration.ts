import { isoNow } from '../../core/clock.ts';
import type { NodeInfo, NodeRegistration, NodeStageMetrics } from '../../schema/index.ts';
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
 * Maximum number of registrations of processes that may take a node id over which another process holds. When there are more, the oldest
 * are dropped.
 */
const MAX_CLAIMS = 8;

/**
 * Registers a node. When the same process registers once more, it keeps its sessions. When another process holds the node id, the
 * registration is only kept: the process takes the id over with its next call (see {@link takeOver}), because the registration may come
 * from a process that died while it was in transit.
 */
export async function registerNode(context: RolloutContext, registration: NodeRegistration): Promise<NodeInfo> {
  const { node_id: nodeId, instance } = registration;
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    const before = await tables.nodes.lock(nodeId);
    const leasedSessions = await tables.sessions.countHeldBy(nodeId);
    if (before !== undefined && before.instance !== instance) {
      const claims = [...claimsOf(before).filter((claim) => claim.instance !== instance), registration];
      const row = { ...before, claims: JSON.stringify(claims.slice(-MAX_CLAIMS)) };
      await tables.nodes.put(row);
      return nodeInfo(context, row, leasedSessions);
    }
    const row = await rowOf(transaction, registration, before);
    await tables.nodes.put(row);
    return nodeInfo(context, row, leasedSessions);
  });
}

/**
 * Runs a call of a node's process. When the call is refused because another process holds the node id, and this process may take the id
 * over, it does so, and the call is repeated. Otherwise the refusal is counted and thrown.
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
 * Gives a node id to a process that has registered with it and is no older than the present owner. The sessions of the present owner
 * return to the queue, and its later calls are refused. Returns whether the process now holds the id.
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
    // Requests of the earlier process may be held open. Waking them refuses them immediately.
    transaction.wake(`node:${nodeId}`);
    transaction.wake(`capacity:${nodeId}`);
    return true;
  });
}

function claimsOf(row: NodeRow): NodeRegistration[] {
  return row.claims === null ? [] : (JSON.parse(row.claims) as NodeRegistration[]);
}

/** Returns the row of a node that registers now. It is not draining and refuses no sessions. */
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
