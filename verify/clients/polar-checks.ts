import { randomUUID } from 'node:crypto';
import { systemClock } from '@floe-rl/core';
import { PolarClient } from './polar-client.ts';
import { polarNodeInfo } from './polar-models.ts';
import { SlimeBridge, type SlimeSample } from './slime-bridge.ts';
import { type Check, must, ONE_CALL, type Target } from './target.ts';

const newId = (name: string): string => `${name}-${randomUUID()}`;

/** Returns the reward of a session as Polar's command line reads it: the reward of its last trace. */
function rewardOf({ trajectory }: { trajectory: { traces: { reward: number | null }[] } }): number | null {
  return trajectory.traces.at(-1)?.reward ?? null;
}

function mustTrain(samples: readonly SlimeSample[]): void {
  must(samples.length > 0, 'the group has no samples');
  for (const { tokens, loss_mask, rollout_log_probs, reward, policy_version } of samples) {
    must(loss_mask.includes(1), 'a sample has no trainable token');
    must(tokens.length > loss_mask.length, 'a sample has no prompt');
    must(rollout_log_probs.length === loss_mask.length, 'a sample has other lengths of mask and log-probabilities');
    must(
      rollout_log_probs.every((value) => Number.isFinite(value) && value <= 0),
      'a log-probability is no number up to 0',
    );
    must(reward === 1, `a sample has reward ${reward}`);
    must(policy_version === 5, `a sample has policy version ${String(policy_version)}`);
  }
}

async function withBridge(target: Target, work: (bridge: SlimeBridge) => Promise<void>): Promise<void> {
  const bridge = await SlimeBridge.start(new PolarClient(target));
  try {
    await work(bridge);
  } finally {
    await bridge.stop();
  }
}

export const POLAR_CHECKS: readonly Check[] = [
  {
    name: 'submit: a dumped TaskRequest is accepted, and polls read as TaskStatus from the first to the last',
    isShort: true,
    run: async (target) => {
      const client = new PolarClient(target);
      const task_id = newId('a task/with any id');
      const submitted = await client.submit({ task_id, num_samples: 3, command: ONE_CALL });
      must(submitted.status === 200, `answered with ${submitted.status}: ${JSON.stringify(submitted.body)}`);
      const first = await client.poll(task_id);
      must(first.total_sessions === 3, 'the first poll does not count three sessions');
      const { status, results } = await client.ended(task_id);
      must(status === 'completed' && results.length === 3, `the task is ${status} with ${results.length} results`);
      must(
        results.every((result) => result.status === 'COMPLETED'),
        'a session did not complete',
      );
      must(
        results.every((result) => result.timing.e2e_ms > 0),
        'a session has no duration',
      );
    },
  },
  {
    name: 'polar submit: completed sessions and sessions with reward 1 are counted right',
    isShort: true,
    run: async (target) => {
      const { results } = await new PolarClient(target).run({
        task_id: newId('cli'),
        num_samples: 3,
        command: ONE_CALL,
      });
      const completed = results.filter((session) => session.status === 'COMPLETED').length;
      const rewarded = results.filter((session) => rewardOf(session) === 1).length;
      must(completed === 3 && rewarded === 3, `it would print ${completed}/${results.length} and ${rewarded}`);
    },
  },
  {
    name: 'polar status: health, nodes and load are read without an error',
    run: async (target) => {
      const client = new PolarClient(target);
      const health = (await client.get('/health')).body as { status: string; nodes: number };
      must(health.status === 'ok' && health.nodes === 1, `the health is ${JSON.stringify(health)}`);
      const status = (await client.get('/rollout/status')).body as Record<string, Record<string, unknown>>;
      must(typeof status.pipeline?.pending_sessions === 'number', 'the number of running sessions is missing');
      const rows = status.nodes?.nodes as unknown[];
      must(rows.map((row) => polarNodeInfo.parse(row)).length === 1, 'the node is missing');
      must(polarNodeInfo.array().parse((await client.get('/nodes')).body).length === 1, 'GET /nodes lacks the node');
    },
  },
  {
    name: 'lists: tasks by harness and time, sessions of a task',
    run: async (target) => {
      const client = new PolarClient(target);
      const task_id = newId('listed');
      const since = systemClock.nowMs() / 1000 - 1;
      await client.run({ task_id, command: ONE_CALL });
      const { tasks } = (await client.get(`/tasks?harness=shell&since=${since}`)).body as {
        tasks: { task_id: string }[];
      };
      must(
        tasks.some((row) => row.task_id === task_id),
        'the task is not listed',
      );
      const { sessions } = (await client.get(`/tasks/${task_id}/sessions`)).body as { sessions: { reward: number }[] };
      must(sessions.length === 1 && sessions[0]?.reward === 1, `the sessions are ${JSON.stringify(sessions)}`);
    },
  },
  {
    name: 'bridge to Slime: a group arrives by callback and converts to samples that train',
    run: (target) =>
      withBridge(target, async (bridge) => {
        const run = randomUUID();
        for (let group = 0; group < 2; group++) mustTrain(await bridge.nextGroup(run, 2, { command: ONE_CALL }));
      }),
  },
  {
    name: 'bridge to Slime: a restarted trainer submits the same ids with a new callback port, and they run again',
    isShort: true,
    run: async (target) => {
      const run = randomUUID();
      const seen: string[] = [];
      for (let start = 0; start < 2; start++) {
        await withBridge(target, async (bridge) => {
          const samples = await bridge.nextGroup(run, 2, { command: ONE_CALL });
          mustTrain(samples);
          seen.push(...samples.map((sample) => sample.session_id));
        });
      }
      must(new Set(seen).size === seen.length, 'the restarted trainer got sessions of the earlier run');
    },
  },
  {
    name: 'bridge to Slime: a worker that stops cancels its tasks, and late submissions are refused',
    run: async (target) => {
      const client = new PolarClient(target);
      const task_id = newId('stopped');
      await client.submit({ task_id, num_samples: 2, command: 'sleep 60' });
      const cancelled = await client.cancel(task_id);
      must(cancelled.status === 200, `the cancellation was answered with ${cancelled.status}`);
      const { status, results } = await client.ended(task_id);
      must(status === 'cancelled', `the task is ${status}`);
      must(
        results.every((result) => result.status === 'ERROR'),
        'a cancelled session is no error',
      );
      const late = newId('late');
      must((await client.cancel(late)).status === 200, 'an unknown id is not cancelled');
      must((await client.submit({ task_id: late })).status === 409, 'a late submission is not refused');
    },
  },
  {
    name: 'bridge to Slime: an evaluation is seeded by sample',
    run: async (target) => {
      const agent = {
        harness: 'shell',
        custom_shell: { command: ONE_CALL, cwd: null, env: null },
        settings: { model_kwargs: { temperature: 0.7, top_p: 0.9, max_tokens: 16, extra_body: { top_k: -1 } } },
      };
      const fields = { num_samples: 2, dispatch_priority: 100, agent, metadata: { eval_sampling_seed_base: 77 } };
      const { results } = await new PolarClient(target).run({ task_id: newId('eval'), ...fields });
      const seeds = results.map((result) => result.metadata.eval_sampling_seed);
      must(seeds.join() === '77,78', `the seeds are ${seeds.join()}`);
    },
  },
  {
    name: 'bridge to Slime: an agent that uses up metadata.agent_timeout trains with reward 0',
    run: (target) =>
      withBridge(target, async (bridge) => {
        const fields = { command: `${ONE_CALL}; sleep 60`, metadata: { agent_timeout: 3 } };
        const [sample] = await bridge.nextGroup(randomUUID(), 1, fields);
        must(sample?.status === 'truncated', `the sample is ${sample?.status}`);
        must(sample.reward === 0 && sample.loss_mask.includes(1), 'the sample does not train with reward 0');
      }),
  },
  {
    name: 'early stop: the task completes with a placeholder for each cancelled session',
    run: async (target) => {
      const fields = { num_samples: 3, early_stop_min_usable_sessions: 1, command: ONE_CALL };
      const { status, results } = await new PolarClient(target).run({ task_id: newId('early'), ...fields });
      must(status === 'completed' && results.length === 3, `the task is ${status} with ${results.length} results`);
      must(
        results.some((result) => result.status === 'COMPLETED'),
        'no session completed',
      );
    },
  },
  {
    name: 'refusals: an effect that floe lacks is a typed error, and an unknown key a warning',
    isShort: true,
    run: async (target) => {
      const client = new PolarClient(target);
      const refused = await client.submit({ task_id: newId('gpu'), runtime: { backend: 'local', gpus: 8 } });
      const { error } = refused.body as { error?: { code: string; message: string } };
      must(refused.status === 422 && error?.code === 'unsupported', `answered with ${JSON.stringify(refused)}`);
      must(error.message.includes('runtime.gpus'), `the message does not name the key: ${error.message}`);
      const accepted = await client.submit({ task_id: newId('unknown'), someday: 1 });
      const { warnings } = accepted.body as { warnings: string[] };
      must(warnings.length === 1 && warnings[0]?.startsWith('someday') === true, `the warnings are ${warnings.join()}`);
    },
  },
];
