import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../tools/repository.ts';
import { prorlResult, prorlStatus } from '../../verify/clients/prorl-models.ts';
import { startTestStack, type TestStack } from './stack.ts';

const SUMS = join(repositoryRoot(), 'packages', 'agents', 'test', 'host', 'plugins', 'sums.js');
const scenarios = parseScenarios(
  {
    scenarios: [{ name: 'sums', match: { contains: '1 + 2' }, rules: [{ reply: [{ text: '3' }] }] }],
  },
  'the test',
);

let stack: TestStack;
beforeAll(async () => {
  stack = await startTestStack({
    scenarios,
    server: {
      prorl_handlers: {
        '*': {
          instruction: 'What is {{instance.a}} + {{instance.b}}?',
          agent: { harness: 'floe', settings: { agent: 'handler' } },
          runtime: { backend: 'none' },
          evaluator: { strategy: 'environment' },
          metadata: { instance: '{{instance}}' },
          timeout_seconds: 60,
        },
      },
    },
    node: { default_backend: 'none', plugins: { handlers: { sums: SUMS } } },
  });
});
afterAll(() => stack.close());

async function call(method: 'GET' | 'POST', path: string, body?: object): Promise<{ status: number; body: unknown }> {
  const reply = await fetch(`${stack.serverUrl}${path}`, {
    method,
    ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
  });
  return { status: reply.status, body: await reply.json() };
}

const instance = (fields: object = {}) => ({ data_source: 'sums', instance_id: 's-1', a: 1, b: 2, ...fields });
const processed = async (fields: object = {}) => {
  const { status, body } = await call('POST', '/process', { instance: instance(fields), sampling_params: {} });
  expect({ status, body }).toMatchObject({ status: 200 });
  // Clients of ProRL do not know the field `reward`, which floe adds, so their model drops it.
  return { ...prorlResult.parse(body), reward: (body as { reward: number | null }).reward };
};

describe("a handler behind ProRL Agent's routes", () => {
  it('is driven by all five: started, given instances, asked, cancelled and stopped', async () => {
    expect(await call('POST', '/start')).toMatchObject({ status: 200 });

    const result = await processed();
    expect(result).toMatchObject({
      success: true,
      resolved: true,
      reward: 1,
      critical_error: null,
      instance_id: 's-1',
    });
    expect(result.messages.map(({ role, content }) => [role, content])).toEqual([
      ['user', 'What is 1 + 2? (number)'],
      ['assistant', '3'],
    ]);
    expect(result.messages[1]?.output_ids?.length).toBeGreaterThan(0);

    const slow = call('POST', '/process', { instance: instance({ wait: true }), job_id: 'slow' });
    await expect
      .poll(async () => prorlStatus.parse((await call('GET', '/status')).body).active_run, { timeout: 20_000 })
      .toBe(1);
    expect(await call('POST', '/cancel', { job_id: 'slow' })).toMatchObject({ status: 200 });
    expect((await slow).body).toMatchObject({ success: false, critical_error: 'timeout' });

    expect(await call('POST', '/stop')).toMatchObject({ status: 200 });
    expect((await call('POST', '/process', { instance: instance() })).status).toBe(503);
    expect(await call('POST', '/start')).toMatchObject({ status: 200 });
  });

  it.each(['init', 'run', 'eval'] as const)(
    'that fails in %s has no reward, and the reply names the stage',
    async (stage) => {
      const result = await processed({ fail: stage });
      expect(result).toMatchObject({ success: false, filter: true, critical_error: stage, reward: null });
      expect(result.error).toContain(`${stage} broke`);
    },
  );

  it('may rescue a failed stage with a score', async () => {
    for (const stage of ['run', 'eval']) {
      expect(await processed({ fail: stage, rescue: stage })).toMatchObject({ success: true, reward: 0.25 });
    }
  });

  it('is not there for other data sources', async () => {
    const result = await processed({ data_source: 'unheard' });
    expect(result).toMatchObject({ success: false, critical_error: 'init' });
    expect(result.error).toContain('no handler for data source unheard; there are: sums, more-sums');
  });
});

describe('a handler of a task', () => {
  async function resultOf(metadata: Record<string, unknown>, options = {}): Promise<SessionResult> {
    const task: TaskRequestInput = {
      instruction: 'What is 1 + 2?',
      agent: { harness: 'floe', settings: { agent: 'handler', options } },
      evaluator: { strategy: 'environment' },
      max_attempts: 1,
      metadata,
    };
    const [result] = await stack.run(task);
    if (result === undefined) throw new Error('the session has no result');
    return result;
  }

  it('is chosen by its settings or by the metadata, and measures its job', async () => {
    for (const [metadata, options] of [
      [{ a: 1, b: 2, data_source: 'more-sums' }, {}],
      [{ a: 1, b: 2 }, { data_source: 'sums' }],
    ]) {
      expect(await resultOf(metadata ?? {}, options)).toMatchObject({
        outcome: 'completed',
        reward: 1,
        agent: { episode: { metrics: { characters: 1, failed: 0 } } },
      });
    }
  });

  it('calls the callback of a stage that fails', async () => {
    const result = await resultOf({ a: 1, b: 2, data_source: 'sums', fail: 'run' });
    expect(result).toMatchObject({
      outcome: 'agent_error',
      reward: null,
      agent: { episode: { status: 'failed', reason: 'run: run broke', metrics: { 'exceptions.run': 1, failed: 1 } } },
    });
  });

  it('must be named', async () => {
    expect(await resultOf({ a: 1 })).toMatchObject({
      outcome: 'env_error',
      error: { message: expect.stringContaining('agent.settings.options.data_source: is missing') },
    });
  });
});
