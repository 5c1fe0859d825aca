import { isoNow } from '../../core/clock.ts';
import type { NodeInfo, NodeRegistration, NodeStageMetrics } from '../../schema/index.ts';
import type { NodeRow, StoreTables } from '../../store/index.ts';
import { change, type RolloutContext } from '../context.ts';
import { takeBackFrom } from '../sessions/claim.ts';
import { isFenced, nodeInfo } from './nodes.ts';

const IDLE: NodeStageMetrics = {
  init_inflight: 0,
  ready_depth: 0,
  run_inflight: 0,
  postrun_queue_depth: 0,
  postrun_inflight: 0,
};

/** Processes that would take an id over and are remembered; of more the oldest are not. */
const MAX_CLAIMS = 8;

/**
 * Adds a node. The same process again keeps what it holds. Another process takes the id over with its next call, see
 * {@link takeOver}: a registration alone may be one that a dead process sent and that was under way for long.
 */
export async function registerNode(context: RolloutContext, registration: NodeRegistration): Promise<NodeInfo> {
  const { node_id: nodeId, instance } = registration;
  return change(context, async (tables) => {
    const before = await tables.nodes.lock(nodeId);
    const held = await tables.sessions.countHeldBy(nodeId);
    if (before !== undefined && before.instance !== instance) {
      const claims = [...claimsOf(before).filter((claim) => claim.instance !== instance), registration];
      const row = { ...before, claims: JSON.stringify(claims.slice(-MAX_CLAIMS)) };
      await tables.nodes.put(row);
      return nodeInfo(context, row, held);
    }
    const row = await rowOf(context, tables, registration, before);
    await tables.nodes.put(row);
    return nodeInfo(context, row, held);
  });
}

/**
 * Gives a node's id to a process that has registered with it, when that is no older than the one that has it: the sessions that
 * the other one held go back to the queue at once, and its later calls are refused. Returns whether the process has the id.
 */
export async function takeOver(context: RolloutContext, nodeId: string, instance: string): Promise<boolean> {
  const known = await context.store.read((tables) => tables.sessions.lockHeldBy(nodeId));
  return change(context, async (tables, effects) => {
    const before = await tables.nodes.lock(nodeId);
    if (before === undefined || before.instance === instance) return before !== undefined;
    const claims = claimsOf(before);
    const index = claims.findIndex((claim) => claim.instance === instance);
    const registration = claims[index];
    if (registration === undefined) return false;
    const later = claims.slice(index + 1);
    const row = await rowOf(context, tables, registration, before);
    const takeovers = before.takeovers + 1;
    await tables.nodes.put({ ...row, takeovers, claims: later.length === 0 ? null : JSON.stringify(later) });
    effects.counted.push('takeovers');
    await takeBackFrom(context, tables, effects, nodeId, known);
    // The older process may have calls held open; it is told at once.
    effects.topics.add(`node:${nodeId}`);
    effects.topics.add(`room:${nodeId}`);
    return true;
  });
}

/** Runs a call of a node's process, which may be the first of one that takes the id over. Counts those of processes that lost it. */
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

function claimsOf(row: NodeRow): NodeRegistration[] {
  return row.claims === null ? [] : (JSON.parse(row.claims) as NodeRegistration[]);
}

/** A node that has just registered, and takes work again. */
async function rowOf(
  context: RolloutContext,
  tables: StoreTables,
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
