import type { HeartbeatReply } from '../../schema/index.ts';
import type { RolloutContext } from '../context.ts';
import { findStops, recordHeartbeat } from '../nodes/heartbeats.ts';
import { drainNode, listNodes, readNode } from '../nodes/nodes.ts';
import { asOwner, registerNode } from '../nodes/registration.ts';
import { type ClaimedSession, claimSessions, returnLeases } from '../sessions/claim.ts';
import { deliverPartial, deliverResult } from '../sessions/deliver.ts';
import type { Api } from './api.ts';
import type { Call, Handlers } from './handler.ts';

/** Largest share of the lease time for which a heartbeat is held, so that the next one arrives well before the lease expires. */
const HOLD_SHARE_OF_LEASE = 1 / 3;

/** Key under which the `draining` flag is stored among the stops that were sent to a node. */
const DRAIN_KEY = 'draining';

/**
 * What this server remembers of its nodes in memory. It only affects how long requests are held: after a node has switched to another
 * server, that server may answer one heartbeat too early, or one lease request only at its next poll.
 */
class NodePacing {
  /** For each node, the stops in the latest heartbeat reply. */
  readonly sentStops = new Map<string, ReadonlySet<string>>();
  /** Ids of the nodes that held as many sessions as they may when they last requested a lease. */
  readonly full = new Set<string>();
}

/** Creates the handlers of the routes for gateway nodes. */
export function nodeHandlers(
  context: RolloutContext,
): Handlers<
  'registerNode' | 'heartbeat' | 'lease' | 'deliverResult' | 'deliverPartial' | 'listNodes' | 'getNode' | 'drainNode'
> {
  const pacing = new NodePacing();
  return {
    registerNode: ({ body }) => {
      pacing.sentStops.delete(body.node_id);
      return registerNode(context, body);
    },
    heartbeat: (call) => asOwner(context, call.id, call.body.instance, () => heartbeat(context, pacing, call)),
    lease: (call) => asOwner(context, call.id, call.body.instance, () => lease(context, pacing, call)),
    deliverResult: async ({ id, body }) => {
      const reply = await deliverResult(context, id, body);
      if (pacing.full.delete(id)) context.wakeups.wake(`capacity:${id}`);
      return reply;
    },
    deliverPartial: ({ id, body }) => deliverPartial(context, id, body),
    listNodes: async () => ({ nodes: await listNodes(context) }),
    getNode: ({ id }) => readNode(context, id),
    drainNode: async ({ id }) => {
      const info = await drainNode(context, id);
      if (!info.healthy) pacing.sentStops.delete(id);
      return info;
    },
  };
}

/**
 * Answers a heartbeat immediately when there is a stop that was not in the latest reply, or a new engine directory; otherwise holds the
 * request until there is one. A stop that was sent before is repeated in every reply but does not end the wait, because the node is still
 * carrying it out.
 */
async function heartbeat(
  context: RolloutContext,
  { sentStops }: NodePacing,
  { id, body, disconnected }: Call<Api['heartbeat']>,
): Promise<HeartbeatReply> {
  const before = sentStops.get(id) ?? new Set<string>();
  const hasNews = (reply: HeartbeatReply): boolean =>
    reply.engines !== null || keysOf(reply).some((key) => !before.has(key));
  let latest = await recordHeartbeat(context, id, body);
  const holdSeconds = Math.min(body.wait_seconds, context.config.lease_seconds * HOLD_SHARE_OF_LEASE);
  if (holdSeconds > 0 && !hasNews(latest)) {
    await context.wakeups.poll(`node:${id}`, holdSeconds * 1000, disconnected, async () => {
      latest = await findStops(context, id, body);
      return hasNews(latest) ? latest : undefined;
    });
  }
  if (!disconnected.aborted) sentStops.set(id, new Set(keysOf(latest)));
  return latest;
}

function keysOf(reply: HeartbeatReply): string[] {
  const stops = reply.stop.map(({ session_id, epoch }) => `${session_id}:${epoch}`);
  return reply.draining ? [...stops, DRAIN_KEY] : stops;
}

async function lease(
  context: RolloutContext,
  { full }: NodePacing,
  { id, body, disconnected, reply }: Call<Api['lease']>,
): Promise<string> {
  const claimOnce = async (): Promise<readonly ClaimedSession[] | undefined> => {
    // A request whose client has closed the connection must not claim sessions, because the leases could not be sent.
    if (disconnected.aborted || context.closing.aborted) return undefined;
    const claim = await claimSessions(context, { nodeId: id, instance: body.instance, slots: body.slots });
    if (claim.isFull) full.add(id);
    return claim.claimed.length > 0 ? claim.claimed : undefined;
  };
  const topics = ['queue', `capacity:${id}`] as const;
  const claimed = (await context.wakeups.poll(topics, body.wait_seconds * 1000, disconnected, claimOnce)) ?? [];
  if (disconnected.aborted && claimed.length > 0) await returnLeases(context, claimed);
  reply.type('application/json');
  // The task is inserted as the stored JSON text, because parsing and serialising it would be the most expensive part of this call.
  const leases = claimed.map(({ lease: one, taskJson }) => `${JSON.stringify(one).slice(0, -1)},"task":${taskJson}}`);
  return `{"leases":[${leases.join(',')}]}`;
}
