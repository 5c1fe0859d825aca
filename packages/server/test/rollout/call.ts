import type { NodeDescription } from '@floe-rl/client';
import { ENVELOPE_TYPE, encodeEnvelope } from '@floe-rl/core/protocol';
import type {
  DeliveryReply,
  HeartbeatReply,
  Lease,
  PartialReply,
  RolloutStatus,
  SessionStatus,
  SessionSummary,
  SessionView,
  SubmitReply,
  TaskRequestInput,
  TaskStatus,
} from '@floe-rl/core/schema';
import type { RolloutServer } from '../../src/rollout/index.ts';
import { METRICS, REGISTRATION, TRAJECTORY } from './workbench.ts';

export type Answer<T = unknown> = { readonly status: number; readonly body: T };
export type Refusal = {
  error: { code: string; message: string; details: Record<string, unknown>; retryable: boolean };
};

/** Calls the routes of a server without a socket, so that the server can run on a virtual clock. */
export class Caller {
  private readonly server: RolloutServer;

  constructor(server: RolloutServer) {
    this.server = server;
  }

  async call<T = Refusal>(method: 'GET' | 'POST' | 'DELETE', url: string, body?: unknown): Promise<Answer<T>> {
    const reply = await this.server.app.inject({
      method,
      url,
      ...(body === undefined ? {} : { payload: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
    });
    return { status: reply.statusCode, body: reply.payload === '' ? (null as T) : JSON.parse(reply.payload) };
  }

  async submit(task: TaskRequestInput): Promise<SubmitReply> {
    return (await this.call<SubmitReply>('POST', '/rollout/task/submit', task)).body;
  }

  async register(nodeId: string, fields: Partial<NodeDescription> = {}): Promise<void> {
    await this.call('POST', '/nodes/register', { ...REGISTRATION, ...fields, node_id: nodeId });
  }

  async lease(nodeId: string, slots = 1): Promise<Lease[]> {
    return (await this.call<{ leases: Lease[] }>('POST', `/nodes/${nodeId}/lease`, { slots })).body.leases;
  }

  async heartbeat(
    nodeId: string,
    held: readonly Pick<Lease, 'session_id' | 'epoch'>[],
    status: SessionStatus = 'RUNNING',
    turns = 0,
  ): Promise<HeartbeatReply> {
    const sessions = held.map(({ session_id, epoch }) => ({ session_id, epoch, status, turns, sampled_tokens: 0 }));
    return (await this.call<HeartbeatReply>('POST', `/nodes/${nodeId}/heartbeat`, { metrics: METRICS, sessions })).body;
  }

  deliver(
    nodeId: string,
    summary: SessionSummary | object,
    trajectory: Buffer | null = TRAJECTORY,
  ): Promise<Answer<DeliveryReply & Refusal>> {
    return this.post(`/nodes/${nodeId}/results`, summary, trajectory);
  }

  deliverPartial(
    nodeId: string,
    summary: SessionSummary | object,
    trajectory: Buffer | null = TRAJECTORY,
  ): Promise<Answer<PartialReply & Refusal>> {
    return this.post(`/nodes/${nodeId}/partials`, summary, trajectory);
  }

  async taskStatus(taskId: string): Promise<TaskStatus> {
    return (await this.call<TaskStatus>('GET', `/rollout/task/${taskId}`)).body;
  }

  async counters(): Promise<RolloutStatus['counters']> {
    return (await this.call<RolloutStatus>('GET', '/rollout/status')).body.counters;
  }

  async session(sessionId: string): Promise<SessionView> {
    return (await this.call<SessionView>('GET', `/sessions/${sessionId}`)).body;
  }

  private async post<T>(url: string, summary: object, trajectory: Buffer | null): Promise<Answer<T>> {
    const parts = new Map(trajectory === null ? [] : [['trajectory', trajectory]]);
    const payload = encodeEnvelope({ header: summary, parts });
    const headers = { 'content-type': ENVELOPE_TYPE };
    const reply = await this.server.app.inject({ method: 'POST', url, payload, headers });
    return { status: reply.statusCode, body: JSON.parse(reply.payload) as T };
  }
}
