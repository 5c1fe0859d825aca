import type { HeartbeatReply } from '../../schema/index.ts';
import type { RolloutContext } from '../context.ts';
import { lookForStops, recordHeartbeat } from '../nodes/heartbeats.ts';
import { drainNode, listNodes, oneNode } from '../nodes/nodes.ts';
import { asOwner, registerNode } from '../nodes/registration.ts';
import { type Claim, claimSessions, returnLeases } from '../sessions/claim.ts';
import { deliverResult } from '../sessions/deliver.ts';
import { keepPartial } from '../sessions/partials.ts';
import type { Api } from './api.ts';
import type { Call, Handlers } from './handler.ts';

/** A heartbeat is held for at most this share of a lease, so that the next one comes well before the lease runs out. */
const HOLD_SHARE_OF_LEASE = 1 / 3;

/** Stands for "draining" among the stops that a node was told. */
const DRAIN_KEY = 'draining';

/**
 * What this server remembers of nodes. It only paces them: another server that does not know of it answers a heartbeat once too
 * early, or lets a lease wait until it looks again.
 */
class NodePacing {
  /** What a node was told in the latest reply. */
  readonly told = new Map<string, ReadonlySet<string>>();
  /** Nodes that asked for sessions while they held all that they may. */
  readonly full = new Set<string>();
}

/** What gateway nodes call. */
export function nodeHandlers(
  context: RolloutContext,
): Handlers<
  'registerNode' | 'heartbeat' | 'lease' | 'deliverResult' | 'deliverPartial' | 'listNodes' | 'getNode' | 'drainNode'
> {
  const pacing = new NodePacing();
  return {
    registerNode: ({ body }) => {
      pacing.told.delete(body.node_id);
      return registerNode(context, body);
    },
    heartbeat: (call) => asOwner(context, call.id, call.body.instance, () => heartbeat(context, pacing, call)),
    lease: (call) => asOwner(context, call.id, call.body.instance, () => lease(context, pacing, call)),
    deliverResult: async ({ id, body }) => {
      const reply = await deliverResult(context, id, body);
      if (pacing.full.delete(id)) context.wakeups.wake(`room:${id}`);
      return reply;
    },
    deliverPartial: ({ id, body }) => keepPartial(context, id, body),
    listNodes: async () => ({ nodes: await listNodes(context) }),
    getNode: ({ id }) => oneNode(context, id),
    drainNode: async ({ id }) => {
      const info = await drainNode(context, id);
      if (!info.healthy) pacing.told.delete(id);
      return info;
    },
  };
}

/**
 * Answers at once when there is something that the node was not told before. What it was told and still lists is repeated
 * with every reply but does not cut the wait short: it is busy ending it.
 */
async function heartbeat(
  context: RolloutContext,
  { told }: NodePacing,
  { id, body, gone }: Call<Api['heartbeat']>,
): Promise<HeartbeatReply> {
  const before = told.get(id) ?? new Set<string>();
  const isNews = (reply: HeartbeatReply): boolean =>
    reply.engines !== null || keysOf(reply).some((key) => !before.has(key));
  let latest = await recordHeartbeat(context, id, body);
  const holdSeconds = Math.min(body.wait_seconds, context.config.lease_seconds * HOLD_SHARE_OF_LEASE);
  if (holdSeconds > 0 && !isNews(latest)) {
    await context.wakeups.poll(`node:${id}`, holdSeconds * 1000, gone, async () => {
      latest = await lookForStops(context, id, body);
      return isNews(latest) ? latest : undefined;
    });
  }
  if (!gone.aborted) told.set(id, new Set(keysOf(latest)));
  return latest;
}

function keysOf(reply: HeartbeatReply): string[] {
  const stops = reply.stop.map(({ session_id, epoch }) => `${session_id}:${epoch}`);
  return reply.draining ? [...stops, DRAIN_KEY] : stops;
}

async function lease(
  context: RolloutContext,
  { full }: NodePacing,
  { id, body, gone, reply }: Call<Api['lease']>,
): Promise<string> {
  const look = async (): Promise<Claim['claimed'] | undefined> => {
    // A request that nobody waits for any more must not take work with it.
    if (gone.aborted || context.closing.aborted) return undefined;
    const claim = await claimSessions(context, id, body.instance, body.slots);
    if (claim.full) full.add(id);
    return claim.claimed.length > 0 ? claim.claimed : undefined;
  };
  const claimed = (await context.wakeups.poll(['queue', `room:${id}`], body.wait_seconds * 1000, gone, look)) ?? [];
  if (gone.aborted && claimed.length > 0) await returnLeases(context, claimed);
  reply.type('application/json');
  // The task goes out as the text that is stored: parsing it here only to write it again would cost the most.
  const leases = claimed.map(({ lease: one, taskJson }) => `${JSON.stringify(one).slice(0, -1)},"task":${taskJson}}`);
  return `{"leases":[${leases.join(',')}]}`;
}
