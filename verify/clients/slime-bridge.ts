import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import type { z } from 'zod';
import type { PolarClient } from './polar-client.ts';
import { type PolarTaskFields, polarTaskResult } from './polar-models.ts';
import { must } from './target.ts';

type TaskResult = z.output<typeof polarTaskResult>;
type SessionResult = TaskResult['results'][number];

/** A training sample that the bridge makes of one trace (`src/slime_bridge/adapter.py` at 063c948). */
export type SlimeSample = {
  readonly session_id: string;
  readonly status: 'completed' | 'truncated' | 'aborted' | 'failed';
  readonly tokens: readonly number[];
  readonly loss_mask: readonly number[];
  readonly rollout_log_probs: readonly number[];
  readonly reward: number;
  readonly policy_version: unknown;
};

/**
 * The part of the bridge between Polar and Slime that talks to the rollout server (`src/slime_bridge/rollout.py` at 01bc72d). It has a
 * listener on a free port, which receives callbacks, and a counter of groups. The counter begins at 0 with every start of the trainer.
 */
export class SlimeBridge {
  private readonly client: PolarClient;
  private readonly server: Server;
  private readonly waiting = new Map<string, (result: TaskResult) => void>();
  private readonly problems: string[] = [];
  private groups = 0;

  private constructor(client: PolarClient) {
    this.client = client;
    this.server = createServer(async (request, response) => {
      const parsed = polarTaskResult.safeParse(await json(request));
      // The bridge answers 200 in either case.
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ ok: parsed.success }));
      if (parsed.success) this.waiting.get(parsed.data.task_id)?.(parsed.data);
      else this.problems.push(parsed.error.message);
    });
  }

  static async start(client: PolarClient): Promise<SlimeBridge> {
    const bridge = new SlimeBridge(client);
    bridge.server.listen(0, '127.0.0.1');
    await once(bridge.server, 'listening');
    return bridge;
  }

  /** Submits the next group, and resolves with its samples when the callback has arrived. */
  async nextGroup(run: string, size: number, fields: Partial<PolarTaskFields>): Promise<SlimeSample[]> {
    const group = this.groups++;
    const task_id = `polar-slime-${run}-${group}`;
    const arrived = new Promise<TaskResult>((resolve) => this.waiting.set(task_id, resolve));
    const { port } = this.server.address() as AddressInfo;
    const metadata = {
      group_id: group,
      policy_version: 5,
      rollout_step: 5,
      ...(fields.metadata as object | undefined),
    };
    const callback_url = `http://127.0.0.1:${port}/callback/task_result`;
    const reply = await this.client.submit({ ...fields, task_id, num_samples: size, callback_url, metadata });
    must(reply.status === 200, `the group was refused with ${reply.status}: ${JSON.stringify(reply.body)}`);
    const result = await Promise.race([arrived, this.client.ended(task_id).then(() => arrived)]);
    must(result.status === 'completed', `the task is ${result.status}`);
    must(result.results.length === size, `the task has ${result.results.length} sessions, not ${size}`);
    must(this.problems.length === 0, `a callback is not a TaskResult: ${this.problems[0]}`);
    return result.results.flatMap(samplesOf);
  }

  async stop(): Promise<void> {
    this.server.close();
    this.server.closeAllConnections();
    await once(this.server, 'close');
  }
}

function samplesOf(result: SessionResult): SlimeSample[] {
  return result.trajectory.traces.map((trace) => {
    const { metadata } = result.trajectory;
    const status = statusOf(result, trace);
    const isInvalid = status === 'aborted' || status === 'failed';
    must(isInvalid || trace.loss_mask.length > 0, `session ${result.session_id} has a trace without a loss mask`);
    must(
      isInvalid || trace.response_logprobs !== null,
      `session ${result.session_id} has a trace without log-probabilities`,
    );
    const isTimeout = result.status === 'TIMEOUT' && status === 'truncated';
    return {
      session_id: result.session_id,
      status,
      tokens: [...trace.prompt_ids, ...trace.response_ids],
      loss_mask: isInvalid ? trace.response_ids.map(() => 0) : trace.loss_mask,
      rollout_log_probs: trace.response_logprobs ?? [],
      reward: isInvalid || isTimeout ? 0 : (trace.reward ?? 0),
      // Later sources win, and a null in the trajectory's metadata would replace the submitted version.
      policy_version: { ...result.metadata, ...metadata, ...trace.metadata }.policy_version,
    };
  });
}

/** Returns the state of a sample. A session whose agent used up its own time is trained with reward 0. */
function statusOf(result: SessionResult, trace: SessionResult['trajectory']['traces'][number]): SlimeSample['status'] {
  const { trajectory } = result;
  if (trajectory.status === 'TIMEOUT' && result.status === 'TIMEOUT') {
    const agent = trajectory.metadata.agent_result as Record<string, unknown> | undefined;
    const filter = trace.metadata.training_filter as Record<string, unknown> | undefined;
    const isAgents = agent?.status === 'timeout' && agent.timeout_source === 'agent' && agent.timeout_stage === 'exec';
    const isTrainable = filter?.reason === 'agent_timeout' && filter.trainable === true && filter.masked !== true;
    return isAgents && isTrainable ? 'truncated' : 'aborted';
  }
  if (trajectory.status === 'ERROR' || result.status === 'ERROR' || result.error || trajectory.error) return 'failed';
  return trace.finish_reason === 'length' ? 'truncated' : 'completed';
}
