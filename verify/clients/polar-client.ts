import { systemClock } from '@floe-rl/core';
import { dumpedTask, type PolarTaskFields, polarTaskStatus } from './polar-models.ts';
import { must, type Target } from './target.ts';

/** Interval between two polls. Polar's clients wait two seconds. */
const POLL_MS = 100;
/** Number of polls after which a task counts as stuck. */
const MAX_POLLS = 600;

export type PolarReply = { readonly status: number; readonly body: unknown };

/**
 * Makes the calls of Polar's clients in the same form (`src/polar/cli.py` and `src/slime_bridge/rollout.py` at 01bc72d). Submissions carry the
 * control token, and polls carry no header. Cancellations carry only the header that the HTTP library makes from the user and the password in
 * the URL.
 */
export class PolarClient {
  private readonly target: Target;

  constructor(target: Target) {
    this.target = target;
  }

  get(path: string): Promise<PolarReply> {
    return this.call('GET', path, {});
  }

  submit(fields: PolarTaskFields): Promise<PolarReply> {
    const headers = { 'x-polar-control-token': this.target.token, 'content-type': 'application/json' };
    return this.call('POST', '/rollout/task/submit', headers, JSON.stringify(dumpedTask(fields)));
  }

  cancel(taskId: string): Promise<PolarReply> {
    const credentials = Buffer.from(`polar:${this.target.token}`).toString('base64');
    const path = `/rollout/task/${encodeURIComponent(taskId)}?register_if_missing=true`;
    return this.call('DELETE', path, { authorization: `Basic ${credentials}` });
  }

  async poll(taskId: string) {
    return polarTaskStatus.parse((await this.get(`/rollout/task/${encodeURIComponent(taskId)}`)).body);
  }

  /** Submits a task, and polls until it has ended. */
  async run(fields: PolarTaskFields) {
    const { status, body } = await this.submit(fields);
    must(status === 200, `the submission was answered with ${status}: ${JSON.stringify(body)}`);
    return this.ended(fields.task_id);
  }

  async ended(taskId: string) {
    for (let polls = 0; polls < MAX_POLLS; polls++) {
      const status = await this.poll(taskId);
      if (status.status !== 'running') return status;
      await new Promise<void>((resolve) => systemClock.schedule(POLL_MS, resolve));
    }
    throw new Error(`task ${taskId} has not ended after ${MAX_POLLS} polls`);
  }

  private async call(
    method: string,
    path: string,
    headers: Record<string, string>,
    body?: string,
  ): Promise<PolarReply> {
    const reply = await fetch(this.target.url + path, { method, headers, ...(body === undefined ? {} : { body }) });
    return { status: reply.status, body: await reply.json() };
  }
}
