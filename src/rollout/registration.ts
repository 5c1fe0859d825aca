import { isoNow } from '../core/clock.ts';
import type { NodeInfo, NodeRegistration, NodeStageMetrics } from '../schema/index.ts';
import type { NodeRow } from '../store/index.ts';
import { change, type RolloutContext } from './context.ts';
import { takeBackFrom } from './leases.ts';
import { nodeInfo } from './nodes.ts';

const IDLE: NodeStageMetrics = {
  init_inflight: 0,
  ready_depth: 0,
  run_inflight: 0,
  postrun_queue_depth: 0,
  postrun_inflight: 0,
};

/**
 * Adds a node. The same process again keeps what it holds; another process takes the id over: the sessions that the older one
 * held go back to the queue at once, and its later calls are refused.
 */
export async function registerNode(context: RolloutContext, registration: NodeRegistration): Promise<NodeInfo> {
  const { node_id: nodeId, instance } = registration;
  const held = await context.store.read((tables) => tables.sessions.lockHeldBy(nodeId));
  return change(context, async (tables, effects) => {
    const now = isoNow(context.clock);
    const before = await tables.nodes.lock(nodeId);
    const takenOver = before !== undefined && before.instance !== instance;
    const row: NodeRow = {
      node_id: nodeId,
      instance,
      takeovers: (before?.takeovers ?? 0) + (takenOver ? 1 : 0),
      registration: JSON.stringify(registration),
      metrics: JSON.stringify(IDLE),
      engines: null,
      draining: 0,
      refuses: null,
      last_seen_ms: await context.time.sharedNowMs(tables),
      registered_at: before?.registered_at ?? now,
      last_heartbeat: now,
    };
    await tables.nodes.put(row);
    if (takenOver) {
      effects.counted.push('takeovers');
      await takeBackFrom(context, tables, effects, nodeId, held);
      // The older process may have calls held open; it is told at once.
      effects.topics.add(`node:${nodeId}`);
      effects.topics.add(`room:${nodeId}`);
    }
    return nodeInfo(context, row, await tables.sessions.countHeldBy(nodeId));
  });
}
