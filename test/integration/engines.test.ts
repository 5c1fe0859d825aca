import { engineKindSchema } from '@floe-rl/core/schema';
import { startSim } from '@floe-rl/sim';
import { afterEach, describe, expect, it } from 'vitest';
import { simTokenizerFolder } from '../../packages/capture/test/engines/tokenizer/sim-folder.ts';
import { SmallServer } from '../examples/engines/small-server.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

const TWO_CALLS = `${oneCall('one')}; ${oneCall('two')}`;
const task = { instruction: 'x', max_attempts: 1, agent: { harness: 'shell', custom_shell: TWO_CALLS } };

let closers: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.reverse()) await close();
  closers = [];
});

async function stackWithoutEngines(): Promise<TestStack> {
  const stack = await startTestStack({ node: { engines: [] } });
  closers.push(() => stack.close());
  return stack;
}

async function sim(options: Parameters<typeof startSim>[0] = {}) {
  const server = await startSim(options);
  closers.push(() => server.close());
  return server;
}

describe('engines that change while sessions run', () => {
  it('serve a session that was submitted before any engine was registered', async () => {
    const stack = await stackWithoutEngines();
    const running = stack.run(task);
    const { client } = stack;
    await expect.poll(async () => (await client.status()).sessions.RUNNING).toBe(1);
    const change = await client.addEngine({ base_url: stack.sim.url, engine_id: 'late' });
    expect(change).toMatchObject({ done: ['test'], problems: [] });
    const [result] = await running;
    expect(result).toMatchObject({ outcome: 'completed', completion_count: 2 });
    const [view] = (await client.engines()).engines;
    expect(view).toMatchObject({ engine_id: 'late', nodes: [{ node_id: 'test', state: 'ready' }] });
  });

  it('receive no call after the reply to their removal', async () => {
    const stack = await stackWithoutEngines();
    const { client } = stack;
    const [old, fresh] = [await sim(), await sim({ face: 'sglang' })];
    await client.addEngine({ base_url: old.url, engine_id: 'old' });
    await stack.run(task);
    const before = old.ledger.total;
    expect(before).toBeGreaterThan(0);
    const cleared = await client.clearEngines();
    expect(cleared).toMatchObject({ engine_ids: ['old'], done: ['test'], pending: [] });
    const reached = old.ledger.total;
    const running = stack.run(task);
    await client.addEngine({ base_url: fresh.url, engine_id: 'fresh', kind: 'sglang' });
    const [result] = await running;
    expect(result?.outcome).toBe('completed');
    expect(old.ledger.total).toBe(reached);
    const sessions = new Set(fresh.ledger.entries().map((entry) => entry.session_id));
    expect(sessions).toContain(result?.session_id);
  });

  it('are named in the reply to a pause that does not stop them, and the reply under way has no version', async () => {
    const stack = await stackWithoutEngines();
    const { client } = stack;
    const silent = await sim({ devMode: false, tokenDelayMs: 20 });
    await client.addEngine({ base_url: silent.url, engine_id: 'silent' });
    // A node that registers an engine makes calls of its own. The test waits for them, because it would take them for the agent's call.
    await expect
      .poll(async () => (await client.engines()).engines[0]?.nodes)
      .toMatchObject([{ node_id: 'test', state: 'ready' }]);
    await client.setPolicyVersion('step-1');
    const running = stack.run({ ...task, agent: { harness: 'shell', custom_shell: oneCall('one') } });
    await expect.poll(() => silent.engine.running).toBe(1);
    const { problems } = await client.pauseEngines('keep');
    expect(problems).toEqual([
      { node_id: 'test', engine_id: 'silent', message: 'it cannot be paused; replies that are running on it: 1' },
    ]);
    silent.updateWeights('step-2');
    expect((await client.setPolicyVersion('step-2')).done).toEqual(['test']);
    expect(await client.resumeEngines()).toMatchObject({ problems: [] });
    const [result] = await running;
    const spans = result?.trajectory?.traces.flatMap((trace) => trace.version_spans) ?? [];
    expect(spans.map(({ version }) => version)).toEqual([null]);
  });

  it('hold calls during a pause, and label what follows with the version of the resume', async () => {
    const stack = await stackWithoutEngines();
    const { client } = stack;
    await client.addEngine({ base_url: stack.sim.url });
    expect(await client.pauseEngines('keep')).toMatchObject({ done: ['test'], pending: [] });
    expect(stack.sim.engine.paused).toBe(true);
    const running = stack.run(task);
    await expect.poll(async () => (await client.status()).sessions.RUNNING).toBe(1);
    stack.sim.updateWeights('step-2');
    await client.resumeEngines();
    const [result] = await running;
    expect(result?.outcome).toBe('completed');
    const spans = result?.trajectory?.traces.flatMap((trace) => trace.version_spans) ?? [];
    expect(new Set(spans.map(({ version }) => version))).toEqual(new Set(['step-2']));
  });
});

describe('an engine of a module', () => {
  const kinds = { small: 'examples/engines/small-server.ts' };
  const startSmall = async () => {
    const sampler = await sim({ scaleOut: true });
    const server = new SmallServer(sampler);
    await server.listen();
    closers.push(() => server.close());
    const folder = simTokenizerFolder();
    closers.push(async () => folder.remove());
    return { sampler, spec: { kind: 'small', base_url: server.url, tokenizer: folder.path } };
  };

  it('samples the tokens of a session, and the trace has exactly those that its server sampled', async () => {
    const stack = await startTestStack({
      node: { engines: [], plugins: { engines: kinds } },
      server: { engine_kinds: ['small'] },
    });
    closers.push(() => stack.close());
    const { sampler, spec } = await startSmall();
    expect(await stack.client.addEngine(spec)).toMatchObject({ done: ['test'], problems: [] });
    const [result] = await stack.run(task);
    expect(result).toMatchObject({ outcome: 'completed', completion_count: 2, calls: { engines: ['small'] } });
    const traces = result?.trajectory?.traces ?? [];
    const trained = traces.map(({ response_ids, response_logprobs, loss_mask, version_spans }) => ({
      ids: response_ids.filter((_, index) => loss_mask[index] === 1),
      logprobs: [...Float32Array.from(response_logprobs.filter((_, index) => loss_mask[index] === 1))],
      version: version_spans[0]?.version,
    }));
    const sampled = sampler.ledger.entries().map(({ response_ids, processed_logprobs }) => ({
      ids: [...response_ids],
      logprobs: [...Float32Array.from(processed_logprobs)],
      version: 'step-1',
    }));
    expect(sampled).toHaveLength(2);
    expect(trained).toEqual(sampled);
  });

  it('is refused by a server that does not have its kind, and reported by a node that lacks the module', async () => {
    const { spec } = await startSmall();
    const without = await stackWithoutEngines();
    await expect(without.client.addEngine(spec)).rejects.toMatchObject({
      code: 'schema_violation',
      details: { issues: [{ path: 'kind' }] },
      message: expect.stringContaining(engineKindSchema.options.join(', ')),
    });
    const other = await startTestStack({ node: { engines: [] }, server: { engine_kinds: ['small'] } });
    closers.push(() => other.close());
    const { problems } = await other.client.addEngine(spec);
    expect(problems).toMatchObject([{ node_id: 'test', message: expect.stringContaining('no engine module small') }]);
  });

  it.each([
    [
      'that is missing',
      { small: 'examples/engines/none.ts' },
      'plugins.engines.small: examples/engines/none.ts cannot',
    ],
    ['of another kind of plug-in', { small: 'examples/builders/last-turns.ts' }, 'last-turns.ts exports no engine'],
  ])('keeps a node from starting with a module %s', async (_, engines, message) => {
    await expect(startTestStack({ node: { plugins: { engines } } })).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining(message),
    });
  });
});
