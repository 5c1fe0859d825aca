import { randomUUID } from 'node:crypto';
import { systemClock } from '@floe-rl/core';
import type { z } from 'zod';
import { prorlResult, prorlStatus } from './prorl-models.ts';
import { type Check, DATA_SOURCE, must, ONE_CALL, type Target } from './target.ts';

/** Longest time that an engine call may take, ms. ProRL Agent answers at once. */
const ENGINE_CALL_MS = 1_000;

/** The sampling parameters that the client of NeMo-RL sends. */
const SAMPLING_PARAMS = {
  model: 'hosted_vllm/policy',
  api_key: 'dummy_key',
  modify_params: false,
  log_completions: false,
  native_tool_calling: true,
  temperature: 0.8,
  top_p: 0.95,
  max_iterations: 5,
  max_output_tokens: 16,
  token_level_generation: true,
  custom_tokenizer: 'Qwen/Qwen3-4B-Instruct-2507',
  max_model_len: 32_768,
};

/** Makes the calls of ProRL Agent's clients. The token is the password in the server's URL, which their HTTP library sends as a header. */
class ProrlClient {
  private readonly target: Target;

  constructor(target: Target) {
    this.target = target;
  }

  async call(method: string, path: string, body?: unknown): Promise<{ status: number; body: unknown }> {
    const credentials = Buffer.from(`prorl:${this.target.token}`).toString('base64');
    const reply = await fetch(this.target.url + path, {
      method,
      headers: { authorization: `Basic ${credentials}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    return { status: reply.status, body: await reply.json() };
  }

  async ok(method: string, path: string, body?: unknown): Promise<unknown> {
    const reply = await this.call(method, path, body);
    must(reply.status === 200, `${path} was answered with ${reply.status}: ${JSON.stringify(reply.body)}`);
    return reply.body;
  }

  process(trajectoryId: number, fields: object = {}, command = ONE_CALL): Promise<unknown> {
    const instance = {
      data_source: DATA_SOURCE,
      instance_id: 'greet-1',
      trajectory_id: trajectoryId,
      problem: 'Say hello.',
      command,
    };
    return this.ok('POST', '/process', { instance, sampling_params: SAMPLING_PARAMS, ...fields });
  }

  /** Removes all engines and registers the target's engine, as a trainer does before a rollout. */
  async useEngine(): Promise<void> {
    await this.ok('POST', '/clear_llm_server');
    await this.ok('POST', '/add_llm_server', { address: `${this.target.engine}/v1` });
  }
}

/** Checks that the client of NeMo-RL can convert the messages to one sequence of ids, and to one log-probability for each sampled id. */
function mustConvert({ messages, resolved }: z.output<typeof prorlResult>): void {
  must(resolved, 'the instance is not resolved');
  const last = messages.at(-1);
  must(last?.role === 'assistant', 'the last message is no reply of the policy');
  must(last.input_ids !== null && last.output_ids !== null && last.logprobs !== null, 'the reply has no ids');
  must(last.logprobs.length === last.output_ids.length, 'the reply has other lengths of ids and log-probabilities');
  const sequence = messages.flatMap((message) => message.token_ids).join();
  must(
    sequence === [...last.input_ids, ...last.output_ids].join(),
    'the ids of the messages are not those of the call',
  );
}

async function tookMs(work: Promise<unknown>): Promise<number> {
  const start = systemClock.monotonicMs();
  await work;
  return systemClock.monotonicMs() - start;
}

/** The checks of ProRL Agent's clients. */
export const PRORL_CHECKS: readonly Check[] = [
  {
    name: 'ProRL: the launch sequence of a trainer, with two trajectories of an instance',
    isShort: true,
    run: async (target) => {
      const client = new ProrlClient(target);
      await client.useEngine();
      await client.ok('POST', '/start');
      prorlStatus.parse(await client.ok('GET', '/status'));
      const results = await Promise.all([client.process(0), client.process(1)]);
      for (const [index, result] of results.map((body) => prorlResult.parse(body)).entries()) {
        must(result.trajectory_id === index && result.instance_id === 'greet-1', 'a result has the ids of another job');
        must(result.critical_error === null && !result.filter, `a job failed: ${result.error}`);
        mustConvert(result);
      }
      await client.ok('POST', '/stop');
      must((await client.call('GET', '/status')).status === 503, 'a stopped server still has a status');
      await client.ok('POST', '/start');
    },
  },
  {
    name: 'ProRL: a cancelled job ends, and its waiting client gets a result to filter',
    run: async (target) => {
      const client = new ProrlClient(target);
      const job_id = randomUUID();
      const result = client.process(0, { job_id }, 'sleep 60');
      for (;;) {
        const { pending_jobs } = prorlStatus.parse(await client.ok('GET', '/status'));
        if (pending_jobs > 0) break;
      }
      await client.ok('POST', '/cancel', { job_id });
      const { critical_error, filter } = prorlResult.parse(await result);
      must(critical_error === 'timeout' && filter, `the result has critical_error ${critical_error}`);
    },
  },
  {
    name: 'ProRL: engine calls are answered within a second, also for an address that is down',
    run: async (target) => {
      const client = new ProrlClient(target);
      const down = client.ok('POST', '/add_llm_server', { address: '127.0.0.1:9' });
      const addedMs = await tookMs(down);
      const clearedMs = await tookMs(client.ok('POST', '/clear_llm_server'));
      await client.useEngine();
      must(addedMs < ENGINE_CALL_MS, `adding took ${Math.round(addedMs)} ms`);
      must(clearedMs < ENGINE_CALL_MS, `clearing took ${Math.round(clearedMs)} ms`);
    },
  },
];
