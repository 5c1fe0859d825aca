import type { HeartbeatReply } from '@floe-rl/core/schema';
import type { RolloutContext } from '../context.ts';
import { HeardNodes } from '../nodes/heard-nodes.ts';
import { findStops, recordHeartbeat } from '../nodes/heartbeats.ts';
import { drainNode, listNodes, readNode } from '../nodes/nodes.ts';
import { asOwner, registerNode } from '../nodes/registration.ts';
import { claimSessions, returnLeases } from '../sessions/claim.ts';
import { ClaimLine } from '../sessions/claim-line.ts';
import { deliverPartial, deliverResult } from '../sessions/deliver.ts';
import type { Api } from './api.ts';
import type { Call, Handlers } from './handler.ts';

/**
 * Largest share of the lease time for which a heartbeat request is held, so that the node's next heartbeat arrives well before its leases
 * expire.
 */
const HOLD_SHARE_OF_LEASE = 1 / 3;

/** Creates the handlers of the routes for gateway nodes. */
export function nodeHandlers(
  context: RolloutContext,
): Handlers<
  'registerNode' | 'heartbeat' | 'lease' | 'deliverResult' | 'deliverPartial' | 'listNodes' | 'getNode' | 'drainNode'
> {
  const heard = new HeardNodes(context.clock);
  const line = new ClaimLine(context);
  return {
    registerNode: ({ body }) => {
      heard.forget(body.node_id);
      return registerNode(context, body);
    },
    heartbeat: (call) => asOwner(context, call.id, call.body.instance, () => heartbeat(context, heard, call)),
    lease: (call) => asOwner(context, call.id, call.body.instance, () => lease(context, line, call)),
    deliverResult: ({ id, body }) => deliverResult(context, id, body),
    deliverPartial: ({ id, body }) => deliverPartial(context, id, body),
    listNodes: async () => ({ nodes: await listNodes(context) }),
    getNode: ({ id }) => readNode(context, id),
    drainNode: async ({ id }) => {
      const info = await drainNode(context, id);
      if (!info.healthy) heard.forget(id);
      return info;
    },
  };
}

/**
 * Answers a heartbeat immediately when there is news for the node: a new engine directory, or an order to stop a session that was not in
 * the latest reply. Otherwise holds the request until there is news. Earlier orders are repeated in every reply but are not news, because
 * the node is still carrying them out.
 */
async function heartbeat(
  context: RolloutContext,
  heard: HeardNodes,
  { id, body, disconnected }: Call<Api['heartbeat']>,
): Promise<HeartbeatReply> {
  const hasNews = (reply: HeartbeatReply): boolean => reply.engines !== null || heard.hasNewOrder(id, reply);
  const holdSeconds = Math.min(body.wait_seconds, context.config.lease_seconds * HOLD_SHARE_OF_LEASE);
  let isRecorded = false;
  const read = (): Promise<HeartbeatReply> => {
    if (isRecorded) return findStops(context, id, body);
    isRecorded = true;
    return recordHeartbeat(context, id, body);
  };
  const reply = await context.wakeups.hold(`node:${id}`, holdSeconds * 1000, disconnected, read, hasNews);
  if (!disconnected.aborted) heard.record(id, reply);
  const reportMs = heard.reportMs();
  return {
    ...reply,
    ...(reportMs === 0 ? {} : { report_ms: reportMs }),
    ...(context.scheduling.mayLeaseAhead(body.sessions.length) ? {} : { lease_ahead: false }),
  };
}

async function lease(
  context: RolloutContext,
  line: ClaimLine,
  { id, body, disconnected, reply }: Call<Api['lease']>,
): Promise<string> {
  const claimed = await line.claim(id, body.wait_seconds * 1000, disconnected, () =>
    claimSessions(context, { nodeId: id, instance: body.instance, slots: body.slots }),
  );
  if (disconnected.aborted && claimed.length > 0) await returnLeases(context, claimed);
  reply.type('application/json');
  // The task is inserted as the JSON text in which it is stored. Parsing and serialising it would be the most expensive part of this call.
  const leases = claimed.map(({ lease: one, taskJson }) => `${JSON.stringify(one).slice(0, -1)},"task":${taskJson}}`);
  return `{"leases":[${leases.join(',')}]}`;
}
