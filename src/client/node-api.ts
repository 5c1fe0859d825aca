import { ENVELOPE_TYPE, type Envelope, encodeEnvelope, envelopeLength } from '../core/envelope.ts';
import { parseAs } from '../core/parse.ts';
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
} from '../schema/index.ts';
import { Connection, type ConnectionOptions } from './connection.ts';

/** What a node hands in for one attempt. Parts are bytes that the server stores without reading them. */
export type DeliveredResult = {
  readonly summary: SessionSummary;
  /** A Trajectory as JSON on one line; null when none was built. */
  readonly trajectory: Buffer | null;
  readonly completions: Buffer | null;
  /** A compressed tar archive of `summary.artifacts.bytes`. */
  readonly artifacts: Buffer | null;
};

/** What a node tells of itself, beside its id and process. */
export type OwnRegistration = Omit<NodeRegistration, 'node_id' | 'instance'>;

export type NodeApiOptions = ConnectionOptions & {
  readonly nodeId: string;
  /** New with each process of the node. Default: one that all such processes share. */
  readonly instance?: string;
};

/** Between server and node there may be a slow link: each of these many bytes may take a second more. */
const BYTES_PER_SECOND = 1024 * 1024;

function envelopeOf(result: DeliveredResult): Envelope {
  const parts = new Map<string, Buffer>();
  for (const name of ['trajectory', 'completions', 'artifacts'] as const) {
    const data = result[name];
    if (data !== null) parts.set(name, data);
  }
  return { header: result.summary, parts };
}

/** Bytes of the request that delivers a result; a server takes up to RESULT_LIMIT_BYTES. */
export function deliveryLength(result: DeliveredResult): number {
  return envelopeLength(envelopeOf(result));
}

/**
 * A gateway node's side of the control API. Every method throws a FloeError: the server's own, or `peer_unreachable`.
 * Nothing is retried here. `not_found` from `heartbeat` or `lease` means: register again. `deliverResult` is to be repeated
 * with the same result until it resolves or throws what the server says of the result itself (`stale_epoch`, `cancelled`,
 * `schema_violation`, `body_too_large`, and `conflict` and `not_found` that name the session): then nobody wants it.
 */
export class NodeApi {
  readonly nodeId: string;
  private readonly instance: string;
  private readonly connection: Connection;
  private readonly path: string;

  constructor(options: NodeApiOptions) {
    this.nodeId = options.nodeId;
    this.instance = options.instance ?? 'none';
    this.connection = new Connection(options);
    this.path = `/nodes/${encodeURIComponent(options.nodeId)}`;
  }

  async register(registration: OwnRegistration, signal?: AbortSignal): Promise<NodeInfo> {
    const body: NodeRegistration = { ...registration, node_id: this.nodeId, instance: this.instance };
    return parseAs(nodeInfoSchema, await this.connection.json('POST', '/nodes/register', { body, signal }), 'node');
  }

  /**
   * Renews the leases of the listed sessions; with `wait_seconds` held until there is something new to stop. A replica that
   * takes `answerSeconds` longer hangs: the next one is asked.
   */
  async heartbeat(
    beat: Omit<Heartbeat, 'instance'>,
    signal?: AbortSignal,
    answerSeconds?: number,
  ): Promise<HeartbeatReply> {
    const body: Heartbeat = { ...beat, instance: this.instance };
    const reply = await this.connection.json('POST', `${this.path}/heartbeat`, {
      body,
      waitSeconds: body.wait_seconds,
      answerSeconds,
      signal,
    });
    return parseAs(heartbeatReplySchema, reply, 'reply to heartbeat');
  }

  /** Takes up to `slots` sessions; with `wait_seconds` held until there is one. Empty when there is none or the node drains. */
  async lease(asked: Omit<LeaseRequest, 'instance'>, signal?: AbortSignal): Promise<Lease[]> {
    const body: LeaseRequest = { ...asked, instance: this.instance };
    const reply = await this.connection.json('POST', `${this.path}/lease`, {
      body,
      waitSeconds: body.wait_seconds,
      signal,
    });
    return parseAs(leaseReplySchema, reply, 'reply to lease').leases;
  }

  /** Resolves when the result is on disk at the server. */
  async deliverResult(result: DeliveredResult, signal?: AbortSignal): Promise<DeliveryReply> {
    return parseAs(deliveryReplySchema, await this.post('results', result, signal), 'reply to result');
  }

  /**
   * Hands in what is left of an attempt that lost its lease or whose process died: evidence to look at, which never changes
   * the session and is never trained. To be repeated as `deliverResult` is. `not_found`: the server knows no such session or
   * attempt, so nobody will ask for it.
   */
  async deliverPartial(remains: DeliveredResult, signal?: AbortSignal): Promise<PartialReply> {
    return parseAs(partialReplySchema, await this.post('partials', remains, signal), 'reply to partial');
  }

  /** Takes this node out of service. */
  async drain(signal?: AbortSignal): Promise<NodeInfo> {
    return parseAs(nodeInfoSchema, await this.connection.json('DELETE', this.path, { signal }), 'node');
  }

  async close(): Promise<void> {
    await this.connection.close();
  }

  private post(what: 'results' | 'partials', result: DeliveredResult, signal?: AbortSignal): Promise<unknown> {
    const data = encodeEnvelope(envelopeOf(result));
    return this.connection.json('POST', `${this.path}/${what}`, {
      bytes: { type: ENVELOPE_TYPE, data },
      waitSeconds: data.length / BYTES_PER_SECOND,
      signal,
    });
  }
}
