import { setImmediate } from 'node:timers/promises';
import { FloeError, MIB } from '@floe-rl/core';
import type { Lease, SessionView } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { prorlResult, prorlStatus } from '../../../../../verify/clients/prorl-models.ts';
import type { Store } from '../../../src/store/index.ts';
import { type Answer, Caller, type Refusal } from '../call.ts';
import { type Running, summaryOf, Workbench } from '../workbench.ts';

const HANDLERS = {
  math: {
    instruction: 'Solve: {{instance.problem}} ({{ instance.extra.level }})',
    timeout_seconds: 60,
    agent: { harness: 'shell', custom_shell: 'solve', env: { ANSWER: '{{instance.answer}}' } },
    metadata: { tags: '{{instance.extra.tags}}', answer: '{{instance.answer}}' },
  },
};
const INSTANCE = {
  data_source: 'math',
  instance_id: 'm-1',
  trajectory_id: 3,
  problem: '1 + 1',
  answer: '2',
  extra: { level: 4, tags: ['sum'] },
};
const TRAJECTORY = Buffer.from(
  JSON.stringify({
    status: 'COMPLETED',
    builder: 'per_request',
    audit: {},
    error: null,
    metadata: {},
    traces: [
      {
        prompt_ids: [1, 2],
        response_ids: [3],
        loss_mask: [1],
        response_logprobs: [-0.5],
        prompt_messages: [{ role: 'user', content: 'Solve' }],
        response_messages: [{ role: 'assistant', content: 'two' }],
        tools: [],
        metadata: { call_kind: 'main', thread: 'main' },
      },
    ],
  }),
);

let bench: Workbench;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  bench = await Workbench.create();
  running = await bench.server({ prorl_handlers: HANDLERS });
  caller = new Caller(running.server);
  await caller.register('n1');
});
afterEach(() => bench.dispose());

type Body = Refusal & { detail: string };

const process = (fields: object = {}): Promise<Answer<Body>> =>
  caller.call<Body>('POST', '/process', { instance: INSTANCE, sampling_params: {}, ...fields });

async function leaseOne(): Promise<Lease> {
  for (;;) {
    const [lease] = await caller.lease('n1');
    if (lease !== undefined) return lease;
    await setImmediate();
  }
}

describe('POST /process', () => {
  it('makes a task of the template for the data source, and replies when it has ended', async () => {
    const reply = process({
      sampling_params: {
        model: 'hosted_vllm/x',
        temperature: 0.6,
        max_output_tokens: 7,
        max_iterations: 5,
        top_k: -1,
        modify_params: false,
      },
    });
    const lease = await leaseOne();
    expect(lease.task).toMatchObject({
      instruction: 'Solve: 1 + 1 (4)',
      num_samples: 1,
      trainer: 'prorl',
      builder: { strategy: 'per_request' },
      agent: { env: { ANSWER: '2' }, max_turns: 5 },
      sampling: { temperature: 0.6, max_tokens: 7, top_k: 0 },
      metadata: { tags: ['sum'] },
    });
    await caller.deliver('n1', summaryOf(lease), TRAJECTORY);
    const { status, body } = await reply;
    expect(status).toBe(200);
    expect(prorlResult.parse(body)).toMatchObject({
      instance_id: 'm-1',
      trajectory_id: 3,
      resolved: true,
      success: true,
      error: null,
      critical_error: null,
      filter: false,
      timing: { init: 0.001, run: 0.001, eval: 0.001, timeout: 60 },
      messages: [
        { role: 'user', content: 'Solve', token_ids: [1, 2] },
        { role: 'assistant', input_ids: [1, 2], output_ids: [3], token_ids: [3], logprobs: [-0.5] },
      ],
    });
    expect(body).toMatchObject({ warnings: ['sampling_params.modify_params: has no effect in floe and is ignored'] });
  });

  it.each([
    [
      'the error of the session',
      { error: { code: 'x', message: 'out of time', stage: null, details: {} } },
      'out of time',
    ],
    ['its outcome if it has no error', {}, 'the session ended as agent_timeout'],
  ])('reports a session that failed as one to filter, with %s', async (_, fields, error) => {
    const reply = process();
    await caller.deliver('n1', summaryOf(await leaseOne(), 'agent_timeout', fields), null);
    const result = { resolved: false, success: false, error, critical_error: 'timeout', filter: true, messages: [] };
    expect((await reply).body).toMatchObject(result);
  });

  it.each([
    ['bad_request', 400, { data_source: 'unknown' }],
    ['schema_violation', 422, { problem: undefined }],
    ['body_too_large', 413, { answer: 'x'.repeat(5 * MIB) }],
  ])('is refused with %s for an instance that makes no task', async (code, status, fields) => {
    const reply = await process({ instance: { ...INSTANCE, ...fields } });
    expect(reply).toMatchObject({ status, body: { error: { code } } });
    expect(reply.body.detail).toBe(reply.body.error.message);
  });

  it('gives repeated requests with the id of a running job the same result, and runs an ended job again', async () => {
    const both = [process({ job_id: 'job/1' }), process({ job_id: 'job/1' })];
    const lease = await leaseOne();
    while ((await caller.call<{ pending_jobs: number }>('GET', '/status')).body.pending_jobs !== 1)
      await setImmediate();
    await caller.deliver('n1', summaryOf(lease), TRAJECTORY);
    const [first, second] = await Promise.all(both);
    expect(second?.body).toEqual(first?.body);
    const again = process({ job_id: 'job/1' });
    const next = await leaseOne();
    expect(next.session_id).not.toBe(lease.session_id);
    await caller.deliver('n1', summaryOf(next), TRAJECTORY);
    expect((await again).status).toBe(200);
  });

  it('cancels the session of a job without an id when its client closes the connection', async () => {
    const url = await running.listen();
    const client = new AbortController();
    const body = JSON.stringify({ instance: INSTANCE, sampling_params: {} });
    const reply = fetch(`${url}/process`, { method: 'POST', body, signal: client.signal }).catch(() => 'aborted');
    const lease = await leaseOne();
    client.abort();
    expect(await reply).toBe('aborted');
    let session: SessionView = await caller.session(lease.session_id);
    while (session.status !== 'CANCELLED') {
      await setImmediate();
      session = await caller.session(lease.session_id);
    }
    expect(session.summary?.outcome).toBe('cancelled');
    expect((await running.server.status()).trainers).toEqual([]);
  });

  it('still replies with the result after the store was unavailable while the client waited', async () => {
    const own = await bench.open();
    let failing = 0;
    let failed = (): void => {};
    const hasFailed = new Promise<void>((resolve) => {
      failed = resolve;
    });
    const store: Store = {
      transaction: (work) => own.store.transaction(work),
      read: (work) => {
        if (failing === 0) return own.store.read(work);
        if (--failing === 0) failed();
        return Promise.reject(new FloeError('store_unavailable', 'the store restarts'));
      },
      announce: () => own.store.announce(),
      listen: () => own.store.listen(),
      close: () => own.store.close(),
    };
    caller = new Caller((await bench.server({ prorl_handlers: HANDLERS }, { ...own, store })).server);
    await caller.register('n1');
    const reply = process();
    const lease = await leaseOne();
    failing = 1;
    await hasFailed;
    await caller.deliver('n1', summaryOf(lease), TRAJECTORY);
    expect(await reply).toMatchObject({ status: 200, body: { resolved: true } });
  });

  it('cancels the session of a job without an id when the server closes', async () => {
    const own = await bench.open();
    const closing = await bench.server({ prorl_handlers: HANDLERS }, own);
    caller = new Caller(closing.server);
    await caller.register('n1');
    const reply = process();
    const lease = await leaseOne();
    await closing.server.close();
    expect(await reply).toMatchObject({ status: 503, body: { error: { code: 'not_ready' } } });
    const session = await own.store.read((tables) => tables.sessions.get(lease.session_id));
    expect(session?.status).toBe('CANCELLED');
  });
});

describe('the life of a ProRL server', () => {
  it('accepts jobs until /stop, and again after /start', async () => {
    const { body } = await caller.call('GET', '/status');
    expect(prorlStatus.parse(body)).toMatchObject({ pending_jobs: 0, total: 0 });
    expect(await caller.call('POST', '/start')).toEqual({
      status: 200,
      body: { status: 'Server started successfully' },
    });
    expect(await caller.call('POST', '/start')).toMatchObject({ status: 400 });
    expect(await caller.call('POST', '/stop')).toMatchObject({ status: 200 });
    for (const [method, path] of [
      ['GET', '/status'],
      ['POST', '/stop'],
    ] as const) {
      expect(await caller.call(method, path), path).toMatchObject({
        status: 503,
        body: { error: { code: 'not_ready', message: 'the server is not running; call /start first' } },
      });
    }
    expect(await process()).toMatchObject({ status: 503, body: { error: { code: 'not_ready' } } });
    expect(await caller.call('POST', '/start')).toMatchObject({ status: 200 });
    expect(await caller.call('GET', '/status')).toMatchObject({ status: 200 });
  });

  it('cancels the jobs whose clients wait when it is stopped', async () => {
    const reply = process();
    const lease = await leaseOne();
    await caller.call('POST', '/stop');
    expect(await reply).toMatchObject({ status: 503 });
    expect(await caller.session(lease.session_id)).toMatchObject({ status: 'CANCELLED' });
  });

  it('cancels a job by its id, and answers the request that waits for it', async () => {
    const reply = process({ job_id: 'j' });
    await leaseOne();
    const cancelled = await caller.call<unknown>('POST', '/cancel', { job_id: 'j' });
    expect(cancelled).toEqual({ status: 200, body: { status: 'Cancel requested for job j' } });
    expect(await reply).toMatchObject({ status: 200, body: { critical_error: 'timeout', messages: [] } });
    expect(await caller.call<unknown>('POST', '/cancel', { job_id: 'unknown' })).toMatchObject({ status: 200 });
  });

  it('refuses a configuration whose templates have no task', async () => {
    await expect(bench.server({ prorl_handlers: { a: { instruction: 'x' } } })).rejects.toMatchObject({
      code: 'schema_violation',
    });
    await expect(
      bench.server({ prorl_handlers: { a: { ...HANDLERS.math, num_samples: 2 } } as never }),
    ).rejects.toMatchObject({
      code: 'schema_violation',
    });
  });
});
