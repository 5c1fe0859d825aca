import { VirtualClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { polarNodeInfo } from '../../../../../verify/clients/polar-models.ts';
import { type Running, task, Workbench } from '../workbench.ts';
import { PolarCaller, TRACE } from './polar-caller.ts';

let bench: Workbench;
let clock: VirtualClock;
let running: Running;
let polar: PolarCaller;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
  running = await bench.server({ polar: 'prefix' });
  polar = new PolarCaller(running);
});
afterEach(() => bench.dispose());

describe('a task of the Polar API', () => {
  it('is polled as TaskStatus while it runs, after each session and at its end, ordered by sample', async () => {
    const submitted = await polar.submitPolar({
      task_id: 'a/b c',
      num_samples: 2,
      metadata: { group_id: 7, policy_version: 3 },
    });
    expect(submitted.body).toEqual({ task_id: 'a/b c', status: 'running', warnings: [] });
    expect(await polar.poll('a/b c')).toMatchObject({ status: 'running', total_sessions: 2, results: [] });
    const leases = await polar.leaseSome(2);
    for (const lease of leases.toReversed()) await polar.end(lease);
    const status = await polar.poll('a/b c');
    expect(status).toMatchObject({ task_id: 'a/b c', status: 'completed', completed_sessions: 2 });
    expect(status.results.map((result) => result.session_id)).toEqual(leases.map((lease) => lease.session_id));
    expect(status.results[0]).toMatchObject({
      task_id: 'a/b c',
      status: 'COMPLETED',
      error: null,
      node_id: 'n1',
      metadata: { group_id: 7, policy_version: 3 },
      timing: { rollout_dispatch_ms: 1, init_ms: 1, ready_queue_ms: 1, run_ms: 1, e2e_ms: 7, prepare_ms: 0 },
      trajectory: {
        error: null,
        metadata: { group_id: 7, policy_version: 3, record_count: 1, builder: 'per_request' },
      },
    });
    const { trace_id: _, ...trace } = TRACE;
    expect(status.results[0]?.trajectory.traces).toEqual([trace]);
    expect(status.result_paths).toEqual(leases.map((lease) => `/sessions/${lease.session_id}/trajectory`));
  });

  it.each([
    ['the longest id', 'é'.repeat(256)],
    ['an id of slashes', '/'.repeat(256)],
    ['an id with dots', '...a../.b'],
    ['an id that looks like an escape', '%2e%2e/100%'],
    ['an id of the characters that separate the parts of a URL', 'a?b#c&d;e\\f'],
  ])('can be polled and cancelled with %s', async (_, id) => {
    expect(await polar.submitPolar({ task_id: id })).toMatchObject({ status: 200 });
    expect(await polar.poll(id)).toMatchObject({ task_id: id, status: 'running' });
    const path = `/polar/rollout/task/${encodeURIComponent(id)}`;
    expect(await polar.call('DELETE', path)).toMatchObject({ status: 200 });
  });

  it('runs again when its id is used after its end, and is refused while it runs', async () => {
    await polar.submitPolar({ task_id: 'again', instruction: 'first' });
    expect(await polar.submitPolar({ task_id: 'again' })).toMatchObject({
      status: 409,
      body: { error: { code: 'conflict' } },
    });
    const [first] = await polar.leaseSome(1);
    if (first !== undefined) await polar.end(first);
    expect(await polar.submitPolar({ task_id: 'again', instruction: 'second' })).toMatchObject({ status: 200 });
    expect(await polar.poll('again')).toMatchObject({ status: 'running', results: [] });
    const [second] = await polar.leaseSome(1);
    expect(second?.task.instruction).toBe('second');
    if (second !== undefined) await polar.end(second);
    const { results } = await polar.poll('again');
    expect(results.map((result) => result.session_id)).toEqual([second?.session_id]);
    expect(second?.session_id).not.toBe(first?.session_id);
  });

  it('shows cancelled sessions as errors with an empty trajectory', async () => {
    await polar.submitPolar({ task_id: 'c', num_samples: 2 });
    const cancelled = await polar.call<unknown>('DELETE', '/polar/rollout/task/c');
    expect(cancelled).toMatchObject({ status: 200, body: { status: 'cancelled' } });
    const { results } = await polar.poll('c');
    expect(results).toHaveLength(2);
    for (const result of results) {
      expect(result).toMatchObject({ status: 'ERROR', error: 'session cancelled' });
      expect(result.trajectory).toMatchObject({ status: 'ERROR', traces: [], metadata: { record_count: 0 } });
    }
    expect(await polar.call('DELETE', '/polar/rollout/task/none')).toMatchObject({ status: 404 });
  });

  it.each([
    [
      'has ended',
      async () => {
        for (const lease of await polar.leaseSome(2)) await polar.end(lease);
      },
    ],
    ['is cancelled', () => polar.call('DELETE', '/polar/rollout/task/u')],
  ])('leaves no uncollected results when it %s, although no client reads them', async (_, end) => {
    await polar.submitPolar({ task_id: 'u', num_samples: 2 });
    await end();
    const { trainers } = await running.server.status();
    expect(trainers.filter((trainer) => trainer.uncollected_results > 0)).toEqual([]);
    expect((await polar.poll('u')).results).toHaveLength(2);
  });

  it('marks the sessions that an early stop cancelled as Polar does', async () => {
    await polar.submitPolar({ task_id: 'early', num_samples: 3, early_stop_min_usable_sessions: 1 });
    const [lease] = await polar.leaseSome(1);
    if (lease !== undefined) await polar.end(lease);
    const { status, results } = await polar.poll('early');
    expect([status, results.length]).toEqual(['completed', 3]);
    const placeholder = { early_stop_cancelled: true, fully_masked: true, early_stop_min_usable_sessions: 1 };
    expect(results[2]).toMatchObject({ status: 'ERROR', metadata: placeholder, trajectory: { metadata: placeholder } });
    expect(results[2]?.error).toContain('enough usable samples');
  });

  it('refuses a late submission of an id that was cancelled before', async () => {
    const early = await polar.call<unknown>('DELETE', '/polar/rollout/task/late?register_if_missing=true');
    expect(early).toMatchObject({ status: 200, body: { status: 'cancelled', total_sessions: 0, results: [] } });
    expect(await polar.submitPolar({ task_id: 'late' })).toMatchObject({ status: 409 });
  });

  it('keeps the traces of an agent timeout trainable with reward 0, and masks all other failures', async () => {
    await polar.submitPolar({ task_id: 't', num_samples: 3, metadata: { agent_timeout: 2 } });
    const leases = await polar.leaseSome(3);
    const exceeded = (budget: string) => ({
      reward: 1,
      agent: { exit_code: null, turns: 1, stdout_tail: '', stderr_tail: '', isolation: 'none' as const },
      error: { code: 'deadline_exceeded', message: 'out of time', stage: 'agent', details: { budget } },
    });
    const [byAgent, bySession, failed] = leases;
    if (byAgent === undefined || bySession === undefined || failed === undefined) throw new Error('no lease');
    await polar.end(byAgent, 'agent_timeout', exceeded('stage'));
    await polar.end(bySession, 'agent_timeout', exceeded('session'));
    await polar.end(failed, 'agent_error', { reward: 1 });
    const [agent, session, error] = (await polar.poll('t')).results;
    expect(agent).toMatchObject({
      status: 'TIMEOUT',
      error: 'out of time',
      trajectory: { metadata: { agent_result: { status: 'timeout', timeout_source: 'agent', timeout_stage: 'exec' } } },
    });
    expect(agent?.trajectory.traces[0]).toMatchObject({
      loss_mask: [1, 0, 1],
      reward: 0,
      response_ids: [3, 4, 5],
      metadata: {
        thread: 'main',
        training_filter: { reason: 'agent_timeout', trainable: true, masked: false, original_reward: 1 },
      },
    });
    expect(session?.trajectory.traces[0]).toMatchObject({
      loss_mask: [0, 0, 0],
      reward: 0,
      metadata: { training_filter: { reason: 'session_timeout', masked: true } },
    });
    expect(error).toMatchObject({ status: 'ERROR', trajectory: { traces: [{ loss_mask: [0, 0, 0], reward: 0 }] } });
  });

  it('passes time limit, seeds and sampling to the session', async () => {
    await polar.submitPolar({
      task_id: 'eval',
      num_samples: 2,
      metadata: { agent_timeout: 30, eval_sampling_seed_base: 40 },
      agent: {
        harness: 'shell',
        custom_shell: { command: './run', cwd: "/it's", env: { A: '1' } },
        settings: { model_kwargs: { temperature: 0.5, max_tokens: 9, extra_body: { top_k: -1, stop_token_ids: [] } } },
      },
    });
    const [lease, other] = await polar.leaseSome(2);
    expect(lease?.task).toMatchObject({
      budgets: { agent: 30 },
      sampling: { seed: 40, temperature: 0.5, max_tokens: 9, top_k: 0 },
      builder: { strategy: 'per_request' },
      agent: { custom_shell: "cd '/it'\\''s' || exit\n./run", env: { A: '1' }, settings: {} },
    });
    for (const one of [lease, other]) if (one !== undefined) await polar.end(one);
    const { results } = await polar.poll('eval');
    expect(results.map((result) => result.metadata.eval_sampling_seed)).toEqual([40, 41]);
  });
});

describe('a Polar request', () => {
  it('is accepted with unknown keys, which the reply names', async () => {
    const { status, body } = await polar.submitPolar({
      task_id: 'w',
      shuffle: true,
      num_samples: undefined,
      num_rollouts: 3,
      agent: { harness: 'shell', custom_shell: 'true', colour: 'red' },
      runtime: { backend: 'local', network: 'host', color: { shade: 'dark' } },
    } as never);
    expect(status).toBe(200);
    expect(body.warnings.map((warning) => warning.split(':')[0])).toEqual([
      'shuffle',
      'agent.colour',
      'num_rollouts',
      'runtime.color',
    ]);
    expect(await polar.poll('w')).toMatchObject({ total_sessions: 3 });
  });

  it.each([
    ['host', { network: 'host' }, 'host', []],
    ['none', { network: 'none' }, 'none', []],
    ['host without internet', { network: 'host', allow_internet: false }, 'none', []],
    ['no network', {}, 'none', [expect.stringContaining('runtime.network: is not set')]],
  ])('that names %s as the network gets a sandbox with that access or less', async (_, fields, network, warnings) => {
    const { body } = await polar.submitPolar({ task_id: 'n', runtime: { backend: 'local', ...fields } });
    expect(body.warnings).toEqual(warnings);
    expect(await polar.leaseSome(1)).toMatchObject([{ task: { runtime: { network } } }]);
  });

  it('that copies files into the sandbox makes a task that copies the same files', async () => {
    const file = { type: 'upload_file', source: '/data/in.txt', target: 'in.txt' };
    const directory = { type: 'upload_dir', source: '/data/repo', target: 'repo' };
    const runtime = { backend: 'local', network: 'none', prepare: [file], eval_prepare: [directory] };
    expect((await polar.submitPolar({ task_id: 'u', runtime })).body.warnings).toEqual([]);
    expect(await polar.leaseSome(1)).toMatchObject([
      { task: { runtime: { prepare: [file], eval_prepare: [directory] } } },
    ]);
  });

  it.each([
    ['command', { type: 'exec' }],
    ['source', { type: 'upload_file', target: 'in.txt' }],
    ['target', { type: 'upload_dir', source: '/data/repo' }],
  ])('is refused without the %s of a prepare action that needs it', async (key, action) => {
    const runtime = { backend: 'local', network: 'none', prepare: [action] };
    const { status, body } = await polar.submitPolar({ task_id: 'k', runtime });
    const message = expect.stringContaining(`runtime.prepare.0.${key}`);
    expect([status, body.error]).toMatchObject([422, { code: 'schema_violation', message }]);
  });

  it.each([[null], [undefined]])('that names %s as evaluator makes a task without one', async (evaluator) => {
    expect(await polar.submitPolar({ task_id: 'e', evaluator })).toMatchObject({ status: 200 });
    expect(await polar.leaseSome(1)).toMatchObject([{ task: { evaluator: null } }]);
  });

  it.each([
    ['runtime.gpus', { runtime: { backend: 'local', gpus: 1 } }],
    ['runtime.kwargs', { runtime: { backend: 'local', kwargs: { fakeroot: true } } }],
    ['runtime.network', { runtime: { backend: 'local', network: 'bridge' } }],
    ['runtime.backend', { runtime: { backend: 'modal', image: 'python:3.12' } }],
    ['runtime.internet_volumes', { runtime: { backend: 'local', internet_volumes: ['/a'] } }],
    ['agent.import_path', { agent: { import_path: 'a:B' } }],
    ['agent.settings.model_kwargs.stop', { agent: { harness: 'pi', settings: { model_kwargs: { stop: ['x'] } } } }],
  ])('is refused for %s, which has an effect that floe lacks', async (path, fields) => {
    const { status, body } = await polar.submitPolar({ task_id: 'r', ...fields });
    expect(status).toBe(422);
    expect(body).toMatchObject({ error: { code: 'unsupported', message: expect.stringContaining(path) } });
    expect(body).toMatchObject({ detail: body.error.message });
  });

  it.each([
    [{ metadata: { agent_timeout: -1 } }],
    [{ metadata: { agent_timeout: true } }],
    [{ metadata: { eval_sampling_seed_base: -3 } }],
    [{ early_stop_min_usable_sessions: 2 }],
    [{ task_id: '' }],
    [{ task_id: '..' }],
    [{ task_id: 'a/./b' }],
    [{ task_id: 'a\0b' }],
  ])('is refused for the value in %j', async (fields) => {
    const { status, body } = await polar.submitPolar({ task_id: 'v', ...fields });
    expect([status, body.error.code]).toEqual([422, 'schema_violation']);
  });
});

describe('the lists of the Polar API', () => {
  it('have the shapes that Polar has, and contain only tasks of this API', async () => {
    await polar.submit(task({ task_id: 'own' }));
    await polar.submitPolar({ task_id: 'p', num_samples: 2 });
    const leases = await polar.leaseSome(3);
    for (const lease of leases) if (lease.task_id !== 'own') await polar.end(lease);
    const { body: nodes } = await polar.call<unknown[]>('GET', '/polar/nodes');
    expect(nodes.map((node) => polarNodeInfo.parse(node))).toHaveLength(1);
    const { body: status } = await polar.call<{ nodes: { nodes: unknown[] } }>('GET', '/polar/rollout/status');
    expect(status).toMatchObject({ tasks: { p: 'completed' }, pipeline: { pending_sessions: 0 } });
    expect(polarNodeInfo.parse(status.nodes.nodes[0])).toMatchObject({ node_id: 'n1', healthy: true });
    const { body: sessions } = await polar.call<{ sessions: object[] }>('GET', '/polar/tasks/p/sessions');
    expect(sessions.sessions[1]).toMatchObject({
      task_id: 'p',
      status: 'COMPLETED',
      reward: 1,
      error: null,
      timing: { init_ms: 1 },
    });
    expect((await polar.call<unknown>('GET', '/polar/health')).body).toEqual({ status: 'ok', nodes: 1 });
  });

  it('order tasks by their last change, the latest first, and contain at most the requested number', async () => {
    for (const id of ['first', 'second', 'third']) {
      await polar.submitPolar({ task_id: id });
      clock.advance(1_000);
    }
    const [lease] = await polar.leaseSome(1);
    if (lease !== undefined) await polar.end(lease);
    const list = async (query: string) =>
      (await polar.call<{ tasks: { task_id: string }[] }>('GET', `/polar/tasks${query}`)).body.tasks.map(
        (row) => row.task_id,
      );
    expect(await list('')).toEqual(['first', 'third', 'second']);
    expect(await list('?limit=2')).toEqual(['first', 'third']);
  });

  it('contain all sessions of a task that has more than one query reads', async () => {
    await polar.submitPolar({ task_id: 'large', num_samples: 401 });
    const { body } = await polar.call<{ sessions: object[] }>('GET', '/polar/tasks/large/sessions');
    expect(body.sessions).toHaveLength(401);
  });

  it('select tasks by harness, state and time of change', async () => {
    await polar.submitPolar({ task_id: 'one' });
    type Tasks = { tasks: { task_id: string; updated_at: number; mean_reward: number | null }[] };
    const list = async (query: string) => (await polar.call<Tasks>('GET', `/polar/tasks?${query}`)).body.tasks;
    const [row] = await list('harness=shell&status=running&since=0');
    expect(row).toMatchObject({
      task_id: 'one',
      num_samples: 1,
      errored_sessions: 0,
      mean_reward: null,
      model: 'policy',
      source: 'live',
    });
    expect(await list('harness=codex')).toEqual([]);
    expect(await list('status=completed')).toEqual([]);
    expect(await list(`since=${(row?.updated_at ?? 0) + 60}`)).toEqual([]);
  });
});
