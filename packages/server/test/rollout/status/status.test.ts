import { FloeError, VirtualClock } from '@floe-rl/core';
import { type Lease, type RolloutStatus, rolloutStatusSchema } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import { MemoryStore } from '../../../../../verify/control-plane/memory-store/store.ts';
import { createRolloutServer, type RolloutServer } from '../../../src/rollout/index.ts';
import type { Store, StoreTables } from '../../../src/store/index.ts';
import { Caller } from '../call.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { METRICS, summaryOf, task } from '../workbench.ts';

/** A store that can be set to refuse writes, or both writes and reads. */
class FailingStore extends MemoryStore {
  writes: string | null = null;
  reads: string | null = null;

  override transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.writes === null ? super.transaction(work) : refuse(this.writes);
  }

  override read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.reads === null ? super.transaction(work) : refuse(this.reads);
  }
}

function refuse(message: string): Promise<never> {
  return Promise.reject(new FloeError('store_unavailable', message));
}

const servers: RolloutServer[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close();
});

async function start(store: Store, token: string | null = null): Promise<Caller> {
  const deps = { store, blobs: new MemoryBlobs(), clock: new VirtualClock(), validateTask: () => {} };
  const server = await createRolloutServer({ token, trainer_weights: { a: 2, b: 0.5 } }, deps);
  servers.push(server);
  return new Caller(server);
}

async function status(caller: Caller): Promise<RolloutStatus> {
  const { status: code, body } = await caller.call<RolloutStatus>('GET', '/rollout/status');
  expect(code).toBe(200);
  return rolloutStatusSchema.parse(body);
}

describe('the status', () => {
  it('names a store that refuses writes as the bottleneck, and counts it, until it accepts one', async () => {
    const store = new FailingStore();
    const caller = await start(store);
    await caller.register('n1');
    await caller.submit(task());
    store.writes = 'the disk is full';
    const refused = await caller.call('POST', '/rollout/task/submit', task());
    expect(refused).toMatchObject({ status: 503, body: { error: { code: 'store_unavailable' } } });
    const failing = await status(caller);
    expect(failing.bottleneck).toMatchObject({ name: 'store', why: expect.stringContaining('the disk is full') });
    expect(failing.counters.store_failures).toBe(1);
    expect(failing.sessions.QUEUED).toBe(1);
    store.writes = null;
    await caller.submit(task());
    expect((await status(caller)).bottleneck).toBeNull();
  });

  it('shows the latest snapshot while the store cannot be read, and states that', async () => {
    const store = new FailingStore();
    const caller = await start(store);
    await caller.submit(task({ num_samples: 3 }));
    expect((await status(caller)).sessions.QUEUED).toBe(3);
    store.reads = 'the database server is gone';
    const failing = await status(caller);
    expect(failing.bottleneck).toMatchObject({ name: 'store', why: expect.stringContaining('server is gone') });
    expect(failing.sessions.QUEUED).toBe(3);
  });

  it('shows the limits flat and without secrets', async () => {
    const store = new FailingStore();
    const deps = { store, blobs: new MemoryBlobs(), clock: new VirtualClock(), validateTask: () => {} };
    const token = 'a-token-that-nobody-may-see';
    const tokens = [{ role: 'viewer' as const, token: 'another-token-that-nobody-may-see' }];
    const server = await createRolloutServer({ token, tokens, trainer_weights: { a: 2, b: 0.5 } }, deps);
    servers.push(server);
    const reply = await server.app.inject({ url: '/rollout/status', headers: { authorization: `Bearer ${token}` } });
    expect(reply.payload).not.toContain('nobody-may-see');
    expect((JSON.parse(reply.payload) as RolloutStatus).limits).toMatchObject({
      trainer_weights: 'a=2 b=0.5',
      tokens: 2,
      queue_order: 'fifo',
      max_uncollected_results: 100_000,
      lease_seconds: 30,
    });
  });

  it('shows full pools, waiting sessions, stage means and hints', async () => {
    const caller = await start(new FailingStore());
    await caller.register('n1');
    await caller.submit(task({ num_samples: 40 }));
    for (let i = 0; i < 25; i++) {
      const [lease] = await caller.lease('n1');
      const summary = summaryOf(lease as Lease);
      const timing = { ...summary.timing, init_ms: 9_000, running_ms: 3_000, postrun_ms: 1_000 };
      await caller.deliver('n1', { ...summary, timing });
    }
    const metrics = { ...METRICS, run_inflight: 4, ready_depth: 2, postrun_inflight: 2, postrun_queue_depth: 1 };
    await caller.call('POST', '/nodes/n1/heartbeat', { metrics, sessions: [] });
    const shown = await status(caller);
    expect(shown.stages).toEqual({ samples: 25, init_ms: 9_000, running_ms: 3_000, postrun_ms: 1_000 });
    expect(shown.hints).toMatchObject([{ node_id: 'n1', setting: 'max_init_workers', value: 4, suggested: 12 }]);
    expect(shown.holding_back).toEqual([
      { limit: 'max_run_workers', where: 'node n1', count: 2, what: 'sessions in READY' },
      { limit: 'max_postrun_workers', where: 'node n1', count: 1, what: 'sessions that have run' },
    ]);
    expect(shown.bottleneck?.name).toBe('run_pool');
  });
});
