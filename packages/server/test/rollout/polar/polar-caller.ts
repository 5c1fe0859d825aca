import type { Lease, Outcome, SessionSummary } from '@floe-rl/core/schema';
import {
  dumpedTask,
  type PolarTaskFields,
  type PolarTaskStatus,
  polarTaskStatus,
} from '../../../../../verify/clients/polar-models.ts';
import { type Answer, Caller, type Refusal } from '../call.ts';
import { type Running, summaryOf } from '../workbench.ts';

export const TRACE = {
  trace_id: 't.0',
  prompt_ids: [1, 2],
  response_ids: [3, 4, 5],
  loss_mask: [1, 0, 1],
  response_logprobs: [-0.5, 0, -0.25],
  prompt_messages: [{ role: 'user', content: 'a "quoted" [text], {with} commas' }],
  response_messages: [{ role: 'assistant', content: 'yes' }],
  tools: [],
  finish_reason: 'stop',
  reward: 1,
  metadata: { thread: 'main' },
};

/** A trajectory as nodes deliver it. */
function trajectoryOf(status: string): Buffer {
  const fields = {
    status,
    builder: 'per_request',
    traces: [TRACE],
    audit: {},
    error: null,
    metadata: { policy_version: null },
  };
  return Buffer.from(JSON.stringify(fields));
}

/** Calls the Polar API of a server without a socket, and acts as the node that runs the sessions. */
export class PolarCaller extends Caller {
  private isRegistered = false;

  constructor({ server }: Running) {
    super(server);
  }

  submitPolar(
    fields: PolarTaskFields,
  ): Promise<Answer<{ task_id: string; status: string; warnings: string[] } & Refusal>> {
    return this.call('POST', '/polar/rollout/task/submit', dumpedTask(fields));
  }

  /** Polls a task, and reads the reply as Polar's clients do. */
  async poll(taskId: string): Promise<PolarTaskStatus> {
    return polarTaskStatus.parse((await this.call('GET', `/polar/rollout/task/${encodeURIComponent(taskId)}`)).body);
  }

  async leaseSome(slots: number): Promise<Lease[]> {
    if (!this.isRegistered) await this.register('n1');
    this.isRegistered = true;
    return this.lease('n1', slots);
  }

  /** Ends a leased session with an outcome. */
  async end(lease: Lease, outcome: Outcome = 'completed', fields: Partial<SessionSummary> = {}): Promise<void> {
    const summary = summaryOf(lease, outcome, { metadata: lease.task.metadata, ...fields });
    const answer = await this.deliver('n1', summary, trajectoryOf(summary.status));
    if (answer.status !== 200) throw new Error(`the result was refused: ${JSON.stringify(answer.body)}`);
  }
}
