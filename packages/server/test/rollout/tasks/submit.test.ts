import { FloeError, VirtualClock } from '@floe-rl/core';
import type { RolloutStatus, SubmitReply, TaskStatus } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let clock: VirtualClock;
let caller: Caller;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
  const running = await bench.server(
    {},
    {
      validateTask: (request) => {
        if (request.agent.harness === 'nobody') throw new FloeError('unknown_harness', 'no harness nobody');
      },
    },
  );
  caller = new Caller(running.server);
  await caller.register('n1');
});
afterEach(() => bench.dispose());

const submit = (body: object) => caller.call<SubmitReply>('POST', '/rollout/task/submit', body);

describe('the server', () => {
  it('returns the same reply for a repeated submit, by id or by key', async () => {
    for (const identity of [
      { task_id: 'mine' },
      { idempotency_key: 'k 1' },
      { task_id: 'm2', idempotency_key: 'k2' },
    ]) {
      const first = await submit(task({ ...identity, num_samples: 3, metadata: { a: 1, b: 2 } }));
      const again = await submit(task({ metadata: { b: 2, a: 1 }, num_samples: 3, ...identity }));
      expect(again).toEqual({ status: 200, body: { ...first.body, duplicate: true } });
    }
  });

  it('creates a new task for each submit without id or key', async () => {
    expect((await submit(task())).body.task_id).not.toBe((await submit(task())).body.task_id);
  });

  it('submits a task again as a new one, without its key and its callback', async () => {
    const callback = { callback_url: 'http://127.0.0.1:9/done', idempotency_key: 'k' };
    const first = await submit(task({ num_samples: 2, metadata: { a: 1 }, ...callback }));
    const path = `/rollout/task/${first.body.task_id}/repeat`;
    const ids = [first.body.task_id];
    for (let repeats = 1; repeats <= 2; repeats++) {
      const { status, body } = await caller.call<SubmitReply>('POST', path);
      expect({ status, body }).toMatchObject({ status: 200, body: { status: 'running', duplicate: false } });
      expect(body.session_ids).toHaveLength(2);
      expect(ids).not.toContain(body.task_id);
      ids.push(body.task_id);
    }
    const { store } = await bench.open();
    const stored = await store.read(({ tasks }) => tasks.get(ids[2] ?? ''));
    expect(stored).toMatchObject({ callback_url: null, idempotency_key: null });
    expect(JSON.parse(stored?.request ?? '{}')).toMatchObject({ num_samples: 2, metadata: { a: 1 } });
    expect(await caller.call('POST', '/rollout/task/absent/repeat')).toMatchObject({ status: 404 });
  });

  it('refuses a different body under a used id or key as a conflict, and changes nothing', async () => {
    await submit(task({ task_id: 'mine', idempotency_key: 'k' }));
    for (const other of [
      task({ task_id: 'mine', idempotency_key: 'k', num_samples: 2 }),
      task({ task_id: 'mine' }),
      task({ idempotency_key: 'k' }),
      task({ task_id: 'another', idempotency_key: 'k' }),
    ]) {
      expect(await submit(other)).toMatchObject({ status: 409, body: { error: { code: 'conflict' } } });
    }
    expect((await caller.call<{ tasks: unknown[] }>('GET', '/tasks')).body.tasks).toHaveLength(1);
  });

  it('creates one task from twenty equal concurrent submits', async () => {
    const replies = await Promise.all(Array.from({ length: 20 }, () => submit(task({ idempotency_key: 'k' }))));
    expect(replies.filter((reply) => !reply.body.duplicate)).toHaveLength(1);
    expect(new Set(replies.map((reply) => reply.body.task_id)).size).toBe(1);
  });

  it('does not store a task that the validation refuses', async () => {
    const reply = await submit(task({ task_id: 'x', agent: { harness: 'nobody' } }));
    expect(reply).toMatchObject({ status: 422, body: { error: { code: 'unknown_harness' } } });
    expect((await caller.call('GET', '/rollout/task/x')).status).toBe(404);
  });

  it('ends queued and leased sessions immediately when the task is cancelled, and notifies the node', async () => {
    const { task_id } = await caller.submit(task({ num_samples: 3 }));
    const [done, held] = await caller.lease('n1', 2);
    if (done === undefined || held === undefined) throw new Error('two sessions were leased');
    await caller.deliver('n1', summaryOf(done));
    const { body } = await caller.call<TaskStatus>('DELETE', `/rollout/task/${task_id}`);
    expect(body).toMatchObject({ status: 'cancelled', completed_sessions: 3 });
    expect(body.results.map((result) => result.outcome)).toEqual(['completed', 'cancelled', 'cancelled']);
    expect((await caller.heartbeat('n1', [held])).stop).toEqual([
      { session_id: held.session_id, epoch: held.epoch, reason: 'cancelled' },
    ]);
    expect(await caller.deliver('n1', summaryOf(held))).toMatchObject({
      status: 409,
      body: { error: { code: 'cancelled' } },
    });
    expect(await caller.lease('n1', 5)).toEqual([]);
  });

  it('changes nothing when a task is cancelled repeatedly or has ended', async () => {
    const { task_id } = await caller.submit(task());
    const first = await caller.call<TaskStatus>('DELETE', `/rollout/task/${task_id}`);
    expect(await caller.call<TaskStatus>('DELETE', `/rollout/task/${task_id}`)).toEqual(first);
    const done = await caller.submit(task());
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('a session was queued');
    await caller.deliver('n1', summaryOf(lease));
    expect((await caller.call<TaskStatus>('DELETE', `/rollout/task/${done.task_id}`)).body.status).toBe('completed');
  });

  it('notifies the node of a session that was cancelled before the node first listed it', async () => {
    await caller.submit(task());
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('a session was queued');
    await caller.call('DELETE', `/sessions/${lease.session_id}`);
    const stop = [{ session_id: lease.session_id, epoch: lease.epoch, reason: 'cancelled' }];
    expect((await caller.heartbeat('n1', [])).stop).toEqual(stop);
    expect((await caller.heartbeat('n1', [lease])).stop).toEqual(stop);
    expect((await caller.heartbeat('n1', [])).stop).toEqual([]);
  });

  it('completes a task when its last open session is cancelled', async () => {
    const { task_id, session_ids } = await caller.submit(task());
    const reply = await caller.call('DELETE', `/sessions/${session_ids[0]}`);
    expect(reply.body).toMatchObject({ status: 'CANCELLED', summary: { outcome: 'cancelled', reward: null } });
    expect((await caller.call<TaskStatus>('GET', `/rollout/task/${task_id}`)).body.status).toBe('completed');
  });

  it('refuses an unknown task that was cancelled with register_if_missing for a while, then accepts it', async () => {
    expect((await caller.call('DELETE', '/rollout/task/later')).status).toBe(404);
    const reply = await caller.call('DELETE', '/rollout/task/later?register_if_missing=true');
    const group = { requested: 0, usable: 0, open: 0, early_stopped: false };
    expect(reply).toMatchObject({ status: 200, body: { status: 'cancelled', total_sessions: 0, group } });
    clock.advance(299_999);
    expect((await submit(task({ task_id: 'later' }))).status).toBe(409);
    clock.advance(1);
    expect((await submit(task({ task_id: 'later' }))).status).toBe(200);
  });

  it('counts sessions in lists and status, and never shows the token', async () => {
    const { task_id } = await caller.submit(task({ num_samples: 2 }));
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('a session was queued');
    await caller.deliver('n1', summaryOf(lease, 'completed', { reward: 0.5 }));
    const { body: list } = await caller.call<{ tasks: unknown[] }>('GET', '/tasks?status=running&limit=1');
    expect(list.tasks).toMatchObject([{ task_id, harness: 'shell', completed_sessions: 1, mean_reward: 0.5 }]);
    const { body: sessions } = await caller.call<{ sessions: unknown[] }>('GET', `/tasks/${task_id}/sessions`);
    expect(sessions.sessions).toMatchObject([{ status: 'COMPLETED' }, { status: 'QUEUED', summary: null }]);
    const { body: status } = await caller.call<RolloutStatus>('GET', '/rollout/status');
    expect(status).toMatchObject({
      tasks: { running: 1, completed: 0, cancelled: 0 },
      sessions: { QUEUED: 1, COMPLETED: 1, RUNNING: 0 },
      nodes: [{ node_id: 'n1', healthy: true }],
      limits: { lease_seconds: 30 },
    });
    expect(status.limits).not.toHaveProperty('token');
  });
});
