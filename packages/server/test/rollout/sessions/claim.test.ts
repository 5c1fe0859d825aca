import { VirtualClock } from '@floe-rl/core';
import type { Lease } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { type Running, summaryOf, task, Workbench } from '../workbench.ts';

const LEASE_MS = 30_000;

let bench: Workbench;
let clock: VirtualClock;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
  running = await bench.server({
    lease_seconds: LEASE_MS / 1000,
    retry_backoff_seconds: 2,
    // By default, a node on which a session failed would get the next attempt of this session only after a delay.
    avoid_node_seconds: 0,
  });
  caller = new Caller(running.server);
  await caller.register('n1');
  await caller.register('n2');
});
afterEach(() => bench.dispose());

async function leaseOne(nodeId = 'n1'): Promise<Lease> {
  const [lease] = await caller.lease(nodeId);
  if (lease === undefined) throw new Error('there was nothing to lease');
  return lease;
}

describe('leases', () => {
  it('go to the highest priority first, then to the earliest submit', async () => {
    await caller.submit(task({ task_id: 'low', num_samples: 2 }));
    await caller.submit(task({ task_id: 'high', dispatch_priority: 9 }));
    await caller.submit(task({ task_id: 'low-too' }));
    const leases = await caller.lease('n1', 10);
    expect(leases.map((lease) => `${lease.task_id}/${lease.sample_index}`)).toEqual([
      'high/0',
      'low/0',
      'low/1',
      'low-too/0',
    ]);
  });

  it('are taken back from a silent node, whose late result is refused', async () => {
    await caller.submit(task());
    const first = await leaseOne('n1');
    clock.advance(LEASE_MS);
    await running.server.sweep();
    const second = await leaseOne('n2');
    expect(second).toMatchObject({ session_id: first.session_id, attempt: 2, epoch: 2 });
    expect(await caller.deliver('n1', summaryOf(first))).toMatchObject({
      status: 409,
      body: { error: { code: 'stale_epoch', retryable: false } },
    });
    expect((await caller.heartbeat('n1', [first])).stop).toEqual([
      { session_id: first.session_id, epoch: 1, reason: 'lease_lost' },
    ]);
    expect((await caller.deliver('n2', summaryOf(second))).status).toBe(200);
  });

  it('are required for a result: a result of the right epoch from another node is refused', async () => {
    await caller.submit(task());
    const lease = await leaseOne('n1');
    expect((await caller.deliver('n2', summaryOf(lease))).body.error.code).toBe('stale_epoch');
  });

  it('last for as long as heartbeats renew them', async () => {
    await caller.submit(task());
    const lease = await leaseOne();
    for (let i = 0; i < 5; i++) {
      clock.advance(LEASE_MS - 1);
      await caller.heartbeat('n1', [lease]);
      await running.server.sweep();
    }
    expect(await caller.session(lease.session_id)).toMatchObject({ status: 'RUNNING', epoch: 1 });
    clock.advance(LEASE_MS);
    await running.server.sweep();
    expect(await caller.session(lease.session_id)).toMatchObject({ status: 'QUEUED', epoch: 2 });
  });

  it('expire when heartbeats no longer list the session', async () => {
    await caller.submit(task({ num_samples: 2 }));
    const [kept, dropped] = await caller.lease('n1', 2);
    if (kept === undefined || dropped === undefined) throw new Error('two sessions were queued');
    clock.advance(LEASE_MS / 2);
    await caller.heartbeat('n1', [kept]);
    clock.advance(LEASE_MS / 2);
    await running.server.sweep();
    expect((await caller.session(kept.session_id)).status).toBe('RUNNING');
    expect((await caller.session(dropped.session_id)).status).toBe('QUEUED');
  });

  it('end a session as infra_error without a reward when its nodes keep dying', async () => {
    const { task_id } = await caller.submit(task({ max_attempts: 2, metadata: { problem: 7 } }));
    for (let attempt = 1; attempt <= 2; attempt++) {
      expect((await leaseOne()).attempt).toBe(attempt);
      clock.advance(LEASE_MS);
      await running.server.sweep();
    }
    const { body } = await caller.call<{ status: string; results: unknown[] }>('GET', `/rollout/task/${task_id}`);
    expect(body.status).toBe('completed');
    expect(body.results).toMatchObject([
      { status: 'ERROR', outcome: 'infra_error', reward: null, attempt: 2, metadata: { problem: 7 } },
    ]);
  });

  it('are granted once more with growing pauses after infrastructure failures, and only the last result counts', async () => {
    await caller.submit(task({ max_attempts: 3 }));
    for (const pauseMs of [2_000, 4_000]) {
      const lease = await leaseOne();
      const reply = await caller.deliver('n1', summaryOf(lease, 'infra_error'));
      expect(reply.body).toMatchObject({ requeued: true, cursor: null });
      clock.advance(pauseMs - 1);
      expect(await caller.lease('n1')).toEqual([]);
      clock.advance(1);
    }
    const last = await leaseOne();
    expect(last).toMatchObject({ attempt: 3, epoch: 3 });
    expect((await caller.deliver('n1', summaryOf(last, 'engine_error'))).body).toMatchObject({
      requeued: false,
      cursor: 1,
    });
    const { body } = await caller.call<{ results: unknown[] }>('GET', '/rollout/results');
    expect(body.results).toMatchObject([{ outcome: 'engine_error', attempt: 3 }]);
  });

  it('are not granted once more after a failure of the agent', async () => {
    await caller.submit(task());
    const lease = await leaseOne();
    expect((await caller.deliver('n1', summaryOf(lease, 'agent_error'))).body.requeued).toBe(false);
  });

  it('are granted once more when a node gives a session up, until the session ends as infra_error', async () => {
    await caller.submit(task({ max_attempts: 2 }));
    expect((await caller.deliver('n1', summaryOf(await leaseOne(), 'cancelled'))).body.requeued).toBe(true);
    clock.advance(2_000);
    const last = await leaseOne();
    expect((await caller.deliver('n1', summaryOf(last, 'cancelled'))).body.requeued).toBe(false);
    expect((await caller.session(last.session_id)).summary).toMatchObject({
      outcome: 'infra_error',
      error: { code: 'peer_unreachable', message: 'node n1 gave the session up in attempt 2, the last one' },
    });
  });

  it('accept a repeated result once more, and refuse a different one as a conflict', async () => {
    await caller.submit(task());
    const lease = await leaseOne();
    const first = await caller.deliver('n1', summaryOf(lease));
    const again = await caller.deliver('n1', summaryOf(lease));
    expect(again).toEqual({ status: 200, body: { ...first.body, duplicate: true } });
    const other = await caller.deliver('n1', summaryOf(lease, 'agent_error'));
    expect(other).toMatchObject({ status: 409, body: { error: { code: 'conflict' } } });
    const { body } = await caller.call<{ results: unknown[] }>('GET', '/rollout/results');
    expect(body.results).toHaveLength(1);
  });

  it('acknowledge a repeated failed attempt after the requeue without an effect', async () => {
    await caller.submit(task());
    const lease = await leaseOne();
    await caller.deliver('n1', summaryOf(lease, 'infra_error'));
    const again = await caller.deliver('n1', summaryOf(lease, 'infra_error'));
    expect(again.body).toMatchObject({ duplicate: true, requeued: true });
    expect(await caller.session(lease.session_id)).toMatchObject({ attempt: 2, epoch: 2 });
  });

  it('record progress only forward, also over several states', async () => {
    await caller.submit(task());
    const lease = await leaseOne();
    await caller.heartbeat('n1', [lease], 'RUNNING', 4);
    expect(await caller.session(lease.session_id)).toMatchObject({ status: 'RUNNING', turns: 4 });
    for (const status of ['INIT', 'QUEUED', 'COMPLETED'] as const) {
      await caller.heartbeat('n1', [lease], status, 5);
      expect(await caller.session(lease.session_id)).toMatchObject({ status: 'RUNNING', turns: 5 });
    }
  });

  it('answer the heartbeat of an unknown node with not_found, so that it registers once more', async () => {
    for (const [path, body] of [
      ['heartbeat', { metrics: { ...NO_METRICS }, sessions: [] }],
      ['lease', { slots: 1 }],
    ] as const) {
      expect(await caller.call('POST', `/nodes/stranger/${path}`, body)).toMatchObject({ status: 404 });
    }
  });

  const NO_METRICS = { init_inflight: 0, ready_depth: 0, run_inflight: 0, postrun_queue_depth: 0, postrun_inflight: 0 };

  it('are not granted to a drained node, which is notified, and removed once it is silent and empty', async () => {
    await caller.submit(task({ num_samples: 2 }));
    const lease = await leaseOne();
    expect((await caller.call('DELETE', '/nodes/n1')).body).toMatchObject({ draining: true, leased_sessions: 1 });
    expect(await caller.lease('n1')).toEqual([]);
    expect((await caller.heartbeat('n1', [lease])).draining).toBe(true);
    await caller.deliver('n1', summaryOf(lease));
    await running.server.sweep();
    expect((await caller.call('GET', '/nodes/n1')).status).toBe(200);
    clock.advance(31_000);
    await running.server.sweep();
    expect((await caller.call('GET', '/nodes/n1')).status).toBe(404);
  });

  it('do not expire when the wall clock jumps', async () => {
    class JumpingClock extends VirtualClock {
      jumpMs = 0;
      override nowMs(): number {
        return super.nowMs() + this.jumpMs;
      }
    }
    const jumping = new JumpingClock();
    const other = await Workbench.create(jumping);
    const server = await other.server();
    const nodes = new Caller(server.server);
    await nodes.register('n1');
    await nodes.submit(task());
    const [lease] = await nodes.lease('n1');
    for (const jumpMs of [86_400_000, -86_400_000]) {
      jumping.jumpMs = jumpMs;
      await server.server.sweep();
      expect(await nodes.session(lease?.session_id ?? '')).toMatchObject({ status: 'LEASED', epoch: 1 });
    }
    await other.dispose();
  });
});
