import { MIB, parseAs, systemClock } from '@floe-rl/core';
import { ENVELOPE_TYPE, type Envelope, encodeEnvelope, envelopeLength } from '@floe-rl/core/protocol';
import {
  type DeliveryReply,
  deliveryReplySchema,
  type Heartbeat,
  type HeartbeatReply,
  heartbeatReplySchema,
  type Lease,
  type LeaseRequest,
  leaseReplySchema,
  type NodeInfo,
  type NodeRegistration,
  nodeInfoSchema,
  type PartialReply,
  partialReplySchema,
  type SessionSummary,
} from '@floe-rl/core/schema';
import { Connection, type ConnectionOptions } from './connection.ts';
import { SentEngines } from './sent-engines.ts';

/** The result of one attempt as a node delivers it. The server stores its parts without parsing them. */
export type DeliveredResult = {
  readonly summary: SessionSummary;
  /** A Trajectory as one line of JSON; `null` when no trajectory was built. */
  readonly trajectory: Buffer | null;
  readonly completions: Buffer | null;
  /** A compressed tar archive of `summary.artifacts.bytes` bytes; `null` when there is none. */
  readonly artifacts: Buffer | null;
  /** Text of the messages for searches; absent when there are no messages. */
  readonly text?: string;
};

/** A node's registration without the ids of the node and its process. */
export type NodeDescription = Omit<NodeRegistration, 'node_id' | 'instance'>;

type NodeApiOptions = ConnectionOptions & {
  readonly nodeId: string;
  /** Id of the node's process. Default: a value that all processes without an id share. */
  readonly instance?: string;
};

/**
 * Slowest supported transfer rate between node and server, in bytes per second. The time limit of a delivery grows with its size so that a
 * connection of this rate suffices.
 */
const MIN_BYTES_PER_SECOND = MIB;

function envelopeOf(result: DeliveredResult): Envelope {
  const parts = new Map<string, Buffer>();
  for (const name of ['trajectory', 'completions', 'artifacts'] as const) {
    const data = result[name];
    if (data !== null) parts.set(name, data);
  }
  if (result.text !== undefined && result.text !== '') parts.set('text', Buffer.from(result.text));
  return { header: result.summary, parts };
}

/** Returns the size in bytes of the request that delivers a result. Servers accept up to RESULT_LIMIT_BYTES. */
export function deliveryLength(result: DeliveredResult): number {
  return envelopeLength(envelopeOf(result));
}

/**
 * The control API for gateway nodes. Every method throws a FloeError: the server's own, or `peer_unreachable`. `not_found` from `heartbeat` or
 * `lease` means that the node must register first.
 *
 * `deliverResult` must be repeated with the same result until it resolves or the server rejects the result itself. The codes of such a
 * rejection are `stale_epoch`, `cancelled`, `schema_violation` and `body_too_large`, and `conflict` or `not_found` if the error names the
 * session. A rejected result can be dropped.
 */
export class NodeApi {
  readonly nodeId: string;
  private readonly instance: string;
  private readonly connection: Connection;
  private readonly path: string;
  private readonly engines: SentEngines;

  constructor(options: NodeApiOptions) {
    this.nodeId = options.nodeId;
    this.instance = options.instance ?? 'none';
    this.connection = new Connection(options);
    this.path = `/nodes/${encodeURIComponent(options.nodeId)}`;
    this.engines = new SentEngines(options.clock ?? systemClock);
  }

  async register(description: NodeDescription, signal?: AbortSignal): Promise<NodeInfo> {
    const body: NodeRegistration = { ...description, node_id: this.nodeId, instance: this.instance };
    this.engines.forget();
    return parseAs(nodeInfoSchema, await this.connection.json('POST', '/nodes/register', { body, signal }), 'node');
  }

  /**
   * Sends a heartbeat, which renews the leases of the listed sessions. With `wait_seconds`, the server holds the reply until there is a
   * session to stop. A replica that replies more than `replySeconds` after the end of that hold counts as unresponsive, and the next one is
   * called. The state of each engine is left out of the request when the server has it, as {@link SentEngines} decides.
   */
  async heartbeat(
    beat: Omit<Heartbeat, 'instance'>,
    signal?: AbortSignal,
    replySeconds?: number,
  ): Promise<HeartbeatReply> {
    const { engines, sent } = this.engines.shortened(beat.engines);
    const body: Heartbeat = { ...beat, engines, instance: this.instance };
    const reply = await this.connection.json('POST', `${this.path}/heartbeat`, {
      body,
      waitSeconds: body.wait_seconds,
      replySeconds,
      signal,
    });
    sent();
    return parseAs(heartbeatReplySchema, reply, 'reply to heartbeat');
  }

  /**
   * Leases up to `slots` sessions. With `wait_seconds`, the server holds the reply until a session is queued. Resolves with an empty array
   * when no session is queued or the node drains.
   */
  async lease(request: Omit<LeaseRequest, 'instance'>, signal?: AbortSignal): Promise<Lease[]> {
    const body: LeaseRequest = { ...request, instance: this.instance };
    const reply = await this.connection.json('POST', `${this.path}/lease`, {
      body,
      waitSeconds: body.wait_seconds,
      signal,
    });
    return parseAs(leaseReplySchema, reply, 'reply to lease').leases;
  }

  /** Delivers a result. Resolves once the server has the result on disk. */
  async deliverResult(result: DeliveredResult, signal?: AbortSignal): Promise<DeliveryReply> {
    return parseAs(deliveryReplySchema, await this.post('results', result, signal), 'reply to result');
  }

  /**
   * Delivers the partial result of an attempt that lost its lease or whose process died. The server keeps it for diagnosis; it never
   * changes the session and is never trained on. Must be repeated in the same way as `deliverResult`. `not_found` means that the server
   * does not know the session or the attempt; the partial result can then be dropped.
   */
  async deliverPartial(partial: DeliveredResult, signal?: AbortSignal): Promise<PartialReply> {
    return parseAs(partialReplySchema, await this.post('partials', partial, signal), 'reply to partial');
  }

  /** Makes the server lease no more sessions to this node. */
  async drain(signal?: AbortSignal): Promise<NodeInfo> {
    return parseAs(nodeInfoSchema, await this.connection.json('DELETE', this.path, { signal }), 'node');
  }

  async close(): Promise<void> {
    await this.connection.close();
  }

  private post(collection: 'results' | 'partials', result: DeliveredResult, signal?: AbortSignal): Promise<unknown> {
    const data = encodeEnvelope(envelopeOf(result));
    return this.connection.json('POST', `${this.path}/${collection}`, {
      bytes: { type: ENVELOPE_TYPE, data },
      waitSeconds: data.length / MIN_BYTES_PER_SECOND,
      signal,
    });
  }
}
