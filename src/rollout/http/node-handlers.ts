import type { HeartbeatReply } from '../../schema/index.ts';
import type { RolloutContext } from '../context.ts';
import { deliverResult } from '../deliveries.ts';
import { claimSessions, returnLeases } from '../leases.ts';
import { drainNode, listNodes, oneNode, recordHeartbeat, registerNode, stopKey, stopsFor } from '../nodes.ts';
import { keepPartial } from '../partials.ts';
import type { Api } from './api.ts';
import type { Call, Handlers } from './handler.ts';

/** A heartbeat is held for at most this share of a lease, so that the next one comes well before the lease runs out. */
const HOLD_SHARE_OF_LEASE = 1 / 3;

/** Stands for "draining" among the stops that a node was told. */
const DRAIN_KEY = 'draining';

/** What gateway nodes call. */
export function nodeHandlers(
  context: RolloutContext,
): Handlers<
  'registerNode' | 'heartbeat' | 'lease' | 'deliverResult' | 'deliverPartial' | 'listNodes' | 'getNode' | 'drainNode'
> {
  const told = new Map<string, ReadonlySet<string>>();
  return {
    registerNode: ({ body }) => {
      told.delete(body.node_id);
      return registerNode(context, body);
    },
    heartbeat: (call) => heartbeat(context, told, call),
    lease: (call) => lease(context, call),
    deliverResult: ({ id, body }) => deliverResult(context, id, body),
    deliverPartial: ({ id, body }) => keepPartial(context, id, body),
    listNodes: async () => ({ nodes: await listNodes(context) }),
    getNode: ({ id }) => oneNode(context, id),
    drainNode: ({ id }) => drainNode(context, id),
  };
}

/**
 * Answers at once when there is something that the node was not told before. What it was told and still lists is repeated
 * with every reply but does not cut the wait short: it is busy ending it.
 */
async function heartbeat(
  context: RolloutContext,
  told: Map<string, ReadonlySet<string>>,
  { id, body, gone }: Call<Api['heartbeat']>,
): Promise<HeartbeatReply> {
  await recordHeartbeat(context, id, body);
  const before = told.get(id) ?? new Set<string>();
  const holdSeconds = Math.min(body.wait_seconds, context.config.lease_seconds * HOLD_SHARE_OF_LEASE);
  let latest: HeartbeatReply = { stop: [], draining: false, engines: null };
  await context.wakeups.poll(`node:${id}`, holdSeconds * 1000, gone, async () => {
    latest = await stopsFor(context, id, body, before);
    const news = latest.engines !== null || !keysOf(latest).every((key) => before.has(key));
    return news ? latest : undefined;
  });
  if (!gone.aborted) told.set(id, new Set(keysOf(latest)));
  return latest;
}

function keysOf(reply: HeartbeatReply): string[] {
  return [...reply.stop.map(stopKey), ...(reply.draining ? [DRAIN_KEY] : [])];
}

async function lease(context: RolloutContext, { id, body, gone, reply }: Call<Api['lease']>): Promise<string> {
  const claimed =
    (await context.wakeups.poll('queue', body.wait_seconds * 1000, gone, async () => {
      // A request that nobody waits for any more must not take work with it.
      if (gone.aborted || context.closing.aborted) return undefined;
      const some = await claimSessions(context, id, body.slots);
      return some.length > 0 ? some : undefined;
    })) ?? [];
  if (gone.aborted && claimed.length > 0) await returnLeases(context, claimed);
  reply.type('application/json');
  // The task goes out as the text that is stored: parsing it here only to write it again would cost the most.
  const leases = claimed.map(({ lease: one, taskJson }) => `${JSON.stringify(one).slice(0, -1)},"task":${taskJson}}`);
  return `{"leases":[${leases.join(',')}]}`;
}
