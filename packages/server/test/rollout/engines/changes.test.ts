import { setImmediate } from 'node:timers/promises';
import { NodeApi } from '@floe-rl/client';
import { VirtualClock } from '@floe-rl/core';
import { engineInfoSchema, engineSpecSchema, type Heartbeat } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { METRICS, REGISTRATION, type Running, Workbench } from '../workbench.ts';

let bench: Workbench;
let running: Running;

beforeEach(async () => {
  bench = await Workbench.create();
  running = await bench.server();
});
afterEach(() => bench.dispose());

type EnginesReport = NonNullable<Heartbeat['engines']>;

const NOTHING: EnginesReport = { revision: 0, heard: 0, info: [], problems: [], unpaused: [] };

function beat(engines: Partial<EnginesReport> = {}, waitSeconds = 0): Omit<Heartbeat, 'instance'> {
  return {
    metrics: METRICS,
    refuses: null,
    sessions: [],
    engines: { ...NOTHING, ...engines },
    wait_seconds: waitSeconds,
  };
}

const infoOf = (engineId: string) =>
  engineInfoSchema.parse({
    engine_id: engineId,
    kind: 'vllm',
    base_url: `http://${engineId}:8000`,
    pool: 'default',
    model: 'm',
    server_version: null,
    max_model_len: null,
    logprobs_mode: 'processed',
    policy_version: null,
    healthy: true,
    streaming: true,
    inflight: 0,
    max_concurrency: null,
    capabilities: {
      token_ids: true,
      token_input: 'none',
      version_spans: false,
      pause: false,
      abort: false,
      cache_salt: false,
      notes: [],
      template: {
        close_ids: [],
        call_end: { ids: [], each: null },
        tail_render: false,
        thinking: { tool_results: 'unknown', user_message: 'unknown' },
        fingerprint: null,
      },
    },
  });

/** Acts as a node: waits in a heartbeat for the next change of the engines, then reports it as applied. */
async function applyChanges(node: NodeApi, report: Partial<EnginesReport> = {}): Promise<void> {
  const reply = await node.heartbeat(beat({ ...report }, 20));
  const revision = reply.engines?.revision ?? 0;
  await node.heartbeat(beat({ ...report, revision, heard: revision }));
}

describe('the engine directory', () => {
  it('reaches every node, and answers a change when all nodes have applied it', async () => {
    const client = await running.client();
    const [one, two] = [await running.node('one'), await running.node('two')];
    const obeyed = Promise.all([applyChanges(one), applyChanges(two)]);
    const change = await client.addEngine({ base_url: 'http://gpu:8000', pool: 'main' });
    await obeyed;
    expect(change).toEqual({ revision: 1, engine_ids: ['gpu-8000'], done: ['one', 'two'], pending: [], problems: [] });
    const report = (await one.heartbeat(beat())).engines;
    expect(report).toEqual({
      revision: 1,
      engines: [engineSpecSchema.parse({ engine_id: 'gpu-8000', base_url: 'http://gpu:8000', pool: 'main' })],
      removed: [],
      paused: null,
      while_paused: 'hold',
      policy_version: null,
    });
    expect((await one.heartbeat(beat({ heard: 1 }))).engines).toBeNull();
  });

  it('names the nodes that have not applied a change, and the problems of those that have', async () => {
    const client = await running.client();
    const [one] = [await running.node('one'), await running.node('two')];
    const failing = applyChanges(one, { problems: [{ engine_id: 'gpu-8000', message: 'cannot be reached' }] });
    const change = await client.addEngine({ base_url: 'http://gpu:8000' }, { waitSeconds: 0.5 });
    await failing;
    expect(change.done).toEqual(['one']);
    expect(change.pending).toEqual(['two']);
    expect(change.problems).toEqual([{ node_id: 'one', engine_id: 'gpu-8000', message: 'cannot be reached' }]);
    const [view] = (await client.engines()).engines;
    expect(view?.nodes.map(({ node_id, state }) => [node_id, state])).toEqual([
      ['one', 'failed'],
      ['two', 'pending'],
    ]);
  });

  it('shows an engine as pending on a node that reports it and has not yet applied the latest change', async () => {
    const client = await running.client();
    const one = await running.node('one');
    const stateOf = async () => (await client.engines()).engines[0]?.nodes.map(({ state }) => state);
    const info = [infoOf('gpu-8000')];
    const { revision } = await client.addEngine({ base_url: 'http://gpu:8000' }, { waitSeconds: 0 });
    await one.heartbeat(beat({ revision, info }));
    expect(await stateOf()).toEqual(['ready']);
    const moved = { engine_id: 'gpu-8000', base_url: 'http://other:1' };
    const changed = await client.addEngine(moved, { waitSeconds: 0, replace: true });
    expect(await stateOf()).toEqual(['pending']);
    await one.heartbeat(beat({ revision: changed.revision, info }));
    expect(await stateOf()).toEqual(['ready']);
  });

  it('keeps the state of the engines when a heartbeat leaves it out, until another process has the node', async () => {
    const client = await running.client();
    const one = await running.node('one');
    const { revision } = await client.addEngine({ base_url: 'http://gpu:8000' }, { waitSeconds: 0 });
    const stateOf = async () =>
      (await client.engines()).engines[0]?.nodes.map(({ state, info }) => [state, info?.model]);
    await one.heartbeat(beat({ revision, info: [infoOf('gpu-8000')] }));
    await one.heartbeat(beat({ revision, info: null, unpaused: [{ engine_id: 'x', message: 'changed' }] }));
    expect(await stateOf()).toEqual([['ready', 'm']]);
    const other = new NodeApi({ url: await running.listen(), nodeId: 'one', instance: 'another' });
    await other.register(REGISTRATION);
    // A registration alone takes nothing over: it may come from a process that has died since.
    expect(await stateOf()).toEqual([['ready', 'm']]);
    await other.heartbeat(beat({ revision, info: null }));
    expect(await stateOf()).toEqual([['pending', undefined]]);
    await other.close();
  });

  it('names the engines that a pause does not stop, which are not failed', async () => {
    const client = await running.client();
    const one = await running.node('one');
    const unpaused = [{ engine_id: 'gpu-8000', message: 'it cannot be paused; replies that are running on it: 2' }];
    const registered = applyChanges(one, { info: [infoOf('gpu-8000')] });
    await client.addEngine({ base_url: 'http://gpu:8000' });
    await registered;
    const paused = applyChanges(one, { heard: 1, info: [infoOf('gpu-8000')], unpaused });
    const change = await client.pauseEngines('keep');
    await paused;
    expect(change).toMatchObject({ done: ['one'], problems: [{ node_id: 'one', ...unpaused[0] }] });
    expect((await client.engines()).engines[0]?.nodes).toMatchObject([{ node_id: 'one', state: 'ready' }]);
  });

  it('survives a restart of the server', async () => {
    const now = { waitSeconds: 0 };
    const client = await running.client();
    await client.addEngine({ base_url: 'http://gpu:8000', api_key: 'secret' }, now);
    await client.pauseEngines('abort', { ...now, whilePaused: 'reject' });
    await client.setPolicyVersion('step-7', now);
    await running.close();
    running = await bench.server();
    const status = await (await running.client()).engines();
    expect(status).toMatchObject({ revision: 3, paused: 'abort', while_paused: 'reject', policy_version: 'step-7' });
    expect(status.engines.map((engine) => engine.engine_id)).toEqual(['gpu-8000']);
    expect(JSON.stringify(status)).not.toContain('secret');
    const resumed = await (await running.client()).resumeEngines(now);
    expect(resumed.revision).toBe(4);
    expect((await (await running.client()).engines()).paused).toBeNull();
  });

  it('treats a repeated registration as one engine, and refuses another spec with the same id', async () => {
    const client = await running.client();
    const now = { waitSeconds: 0 };
    const first = await client.addEngine({ base_url: 'http://gpu:8000' }, now);
    expect((await client.addEngine({ base_url: 'http://gpu:8000' }, now)).revision).toBe(first.revision);
    const other = client.addEngine({ engine_id: 'gpu-8000', base_url: 'http://other:1' }, now);
    await expect(other).rejects.toMatchObject({ code: 'conflict', details: { engine_id: 'gpu-8000' } });
  });

  it('replaces the spec of an engine in a single change when requested', async () => {
    const client = await running.client();
    const node = await running.node('one');
    const replacing = { waitSeconds: 0, replace: true };
    const first = await client.addEngine({ base_url: 'http://gpu:8000' }, replacing);
    expect((await client.addEngine({ base_url: 'http://gpu:8000' }, replacing)).revision).toBe(first.revision);
    const moved = await client.addEngine({ engine_id: 'gpu-8000', base_url: 'http://other:1', pool: 'b' }, replacing);
    expect(moved.revision).toBe(first.revision + 1);
    expect((await node.heartbeat(beat())).engines).toMatchObject({
      revision: moved.revision,
      engines: [{ engine_id: 'gpu-8000', base_url: 'http://other:1', pool: 'b' }],
      removed: [],
    });
  });

  it("removes an engine of a node's own configuration until it is registered", async () => {
    const client = await running.client();
    const node = await running.node('one');
    await node.heartbeat(beat({ info: [infoOf('own')] }));
    expect((await client.engines()).engines).toMatchObject([{ engine_id: 'own', source: 'node' }]);
    const removed = await client.clearEngines({ waitSeconds: 0 });
    expect(removed.engine_ids).toEqual(['own']);
    expect((await node.heartbeat(beat())).engines?.removed).toEqual(['own']);
    await client.addEngine({ engine_id: 'own', base_url: 'http://own:8000' }, { waitSeconds: 0 });
    expect((await node.heartbeat(beat())).engines).toMatchObject({ removed: [], engines: [{ engine_id: 'own' }] });
  });

  it.each([
    [{ base_url: 'ftp://gpu' }, 'base_url'],
    [{ base_url: 'http://gpu', kind: 'tensorrt' }, 'kind'],
    [{ base_url: 'http://gpu', max_concurrency: 0 }, 'max_concurrency'],
    [{ base_url: 'http://gpu', speed: 1 }, 'speed'],
  ])('refuses %j, and names the field', async (spec, field) => {
    const adding = (await running.client()).addEngine(spec as never, { waitSeconds: 0 });
    const error = await adding.then(
      () => null,
      (thrown: unknown) => thrown as { code: string; message: string },
    );
    expect(error?.code).toBe('schema_violation');
    expect(error?.message).toContain(field);
  });

  it('does not know an engine that never existed', async () => {
    const removing = (await running.client()).removeEngine('nobody', { waitSeconds: 0 });
    await expect(removing).rejects.toMatchObject({ code: 'not_found' });
  });
});

describe('the calls of ProRL Agent', () => {
  const post = async (path: string, body?: object) => {
    const reply = await fetch(`${await running.listen()}${path}`, {
      method: 'POST',
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    return { status: reply.status, body: (await reply.json()) as Record<string, unknown> };
  };

  it.each([['gpu:8000'], ['http://gpu:8000/v1'], ['http://gpu:8000/']])(
    'add %s as an engine, and clear it',
    async (address) => {
      expect(await post('/add_llm_server', { address })).toMatchObject({
        status: 200,
        body: { status: 'ok', address },
      });
      const status = await (await running.client()).engines();
      expect(status.engines).toMatchObject([{ engine_id: 'gpu-8000', base_url: 'http://gpu:8000' }]);
      expect(await post('/clear_llm_server')).toMatchObject({ status: 200, body: { engine_ids: ['gpu-8000'] } });
      expect((await (await running.client()).engines()).engines).toEqual([]);
    },
  );

  it.each([['/add_llm_server'], ['/clear_llm_server']])(
    'answer %s after less than a second although no node has applied the change',
    async (path) => {
      const clock = new VirtualClock();
      const own = await Workbench.create(clock);
      const { server } = await own.server();
      await new Caller(server).register('n1');
      let isAnswered = false;
      const reply = new Caller(server).call('POST', path, { address: 'down:8000' }).finally(() => {
        isAnswered = true;
      });
      let waitedMs = 0;
      for (; !isAnswered; waitedMs += 50) {
        clock.advance(50);
        for (let turn = 0; turn < 20; turn++) await setImmediate();
      }
      expect(waitedMs).toBeLessThan(1000);
      expect(await reply).toMatchObject({ status: 200, body: { status: 'ok', pending: ['n1'] } });
      await own.dispose();
    },
  );

  it('refuse an invalid address', async () => {
    expect((await post('/add_llm_server', { address: 'http://' })).status).toBe(422);
    expect((await post('/add_llm_server', {})).status).toBe(422);
  });
});
