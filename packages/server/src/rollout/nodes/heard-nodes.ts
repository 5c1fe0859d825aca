import type { Clock } from '@floe-rl/core';
import type { HeartbeatReply } from '@floe-rl/core/schema';

/** A key of an order which means that the node was ordered to drain. Every other key stands for an order to stop one session. */
const DRAIN_KEY = 'draining';
/** Time in milliseconds after which a node that sent no heartbeat to this server is forgotten. */
const FORGET_MS = 60_000;
/** Interval in milliseconds at which silent nodes are removed. */
const REMOVE_INTERVAL_MS = 5_000;
/** Up to this number of nodes, each node may report the progress of its sessions as often as it wants. */
const UNLIMITED_NODES = 20;
/**
 * Time in milliseconds between two reports of progress that a server records. The shortest interval between reports of one of `n` nodes is `n`
 * times this time. Reports then take at most about a fifth of a server's time, however many nodes there are.
 */
const REPORT_MS = 5;

type HeardNode = { readonly orders: ReadonlySet<string>; readonly atMs: number };

/**
 * The nodes whose heartbeats this server has answered. They are kept in memory only: a server that has not answered a node yet may answer
 * its first heartbeat too early.
 */
export class HeardNodes {
  private readonly clock: Clock;
  private readonly nodes = new Map<string, HeardNode>();
  private removedMs: number;

  constructor(clock: Clock) {
    this.clock = clock;
    this.removedMs = clock.monotonicMs();
  }

  /** Whether a reply contains an order that the latest reply to the node did not contain. */
  hasNewOrder(nodeId: string, reply: HeartbeatReply): boolean {
    const before = this.nodes.get(nodeId)?.orders;
    return ordersOf(reply).some((order) => before?.has(order) !== true);
  }

  /** Remembers the latest reply to a node. */
  record(nodeId: string, reply: HeartbeatReply): void {
    const atMs = this.clock.monotonicMs();
    this.nodes.set(nodeId, { orders: new Set(ordersOf(reply)), atMs });
    if (atMs - this.removedMs < REMOVE_INTERVAL_MS) return;
    this.removedMs = atMs;
    for (const [id, node] of this.nodes) if (atMs - node.atMs > FORGET_MS) this.nodes.delete(id);
  }

  forget(nodeId: string): void {
    this.nodes.delete(nodeId);
  }

  /** Returns the shortest time between two reports of progress of one node in milliseconds; 0 for no limit. */
  reportMs(): number {
    return this.nodes.size <= UNLIMITED_NODES ? 0 : this.nodes.size * REPORT_MS;
  }
}

function ordersOf(reply: HeartbeatReply): string[] {
  const stops = reply.stop.map(({ session_id, epoch }) => `${session_id}:${epoch}`);
  return reply.draining ? [...stops, DRAIN_KEY] : stops;
}
