import { VirtualClock } from '@floe-rl/core';
import { type Lease, type RolloutStatus, taskRequestSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { rolloutConfigSchema } from '../../../src/rollout/config.ts';
import type { RolloutConfigInput } from '../../../src/rollout/index.ts';
import { durationKeyOf } from '../../../src/rollout/sessions/durations.ts';
import { Scheduling } from '../../../src/rollout/sessions/scheduling.ts';
import type { StoreTables } from '../../../src/store/index.ts';
import { Caller } from '../call.ts';
import { REGISTRATION, type Running, summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let clock: VirtualClock;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
});
afterEach(() => bench.dispose());

async function start(config: RolloutConfigInput = {}): Promise<void> {
  running = await bench.server(config);
  caller = new Caller(running.server);
  await caller.call('POST', '/nodes/register', { ...REGISTRATION, node_id: 'n1', max_run_workers: 1000 });
}

function count(leases: readonly Lease[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { task } of leases) counts[task.trainer] = (counts[task.trainer] ?? 0) + 1;
  return counts;
}

async function status(): Promise<RolloutStatus> {
  return (await caller.call<RolloutStatus>('GET', '/rollout/status')).body;
}

describe('scheduling', () => {
  describe('trainers', () => {
    it('share what a node requests, even when one came first with many more sessions', async () => {
      await start();
      await caller.submit(task({ trainer: 'early', num_samples: 500 }));
      expect(count(await caller.lease('n1', 20))).toEqual({ early: 20 });
      await caller.submit(task({ trainer: 'late', num_samples: 50 }));
      // At first only the trainer `late` gets sessions, until it holds as many as the trainer `early`. From then on they get equal numbers.
      expect(count(await caller.lease('n1', 10))).toEqual({ late: 10 });
      expect(count(await caller.lease('n1', 20))).toEqual({ late: 15, early: 5 });
      expect(count(await caller.lease('n1', 10))).toEqual({ late: 5, early: 5 });
    });

    it('share slots that are requested one at a time', async () => {
      await start();
      for (const trainer of ['a', 'b', 'c']) await caller.submit(task({ trainer, num_samples: 10 }));
      const leases: Lease[] = [];
      for (let i = 0; i < 9; i++) leases.push(...(await caller.lease('n1')));
      expect(count(leases)).toEqual({ a: 3, b: 3, c: 3 });
    });

    it('get more with a larger weight, and get the slots for which another trainer has no sessions', async () => {
      await start({ trainer_weights: { heavy: 3 } });
      await caller.submit(task({ trainer: 'heavy', num_samples: 100 }));
      await caller.submit(task({ trainer: 'light', num_samples: 100 }));
      await caller.submit(task({ trainer: 'small', num_samples: 1 }));
      expect(count(await caller.lease('n1', 41))).toEqual({ heavy: 30, light: 10, small: 1 });
    });

    it('take no part while all their sessions are in back-off', async () => {
      await start({ retry_backoff_seconds: 60, avoid_node_seconds: 0 });
      await caller.submit(task({ trainer: 'failing' }));
      await caller.submit(task({ trainer: 'fine', num_samples: 4 }));
      for (const lease of await caller.lease('n1', 2)) {
        if (lease.task.trainer === 'failing') await caller.deliver('n1', summaryOf(lease, 'infra_error'));
      }
      expect(count(await caller.lease('n1', 10))).toEqual({ fine: 3 });
      expect((await status()).bottleneck?.name).toBe('retry_backoff');
    });

    it('are held back while they do not collect, which the status shows', async () => {
      await start({ max_uncollected_results: 3 });
      await caller.submit(task({ trainer: 'slow', num_samples: 6 }));
      await caller.submit(task({ trainer: 'quick', num_samples: 2 }));
      const leases = await caller.lease('n1', 5);
      for (const lease of leases) {
        if (lease.task.trainer === 'slow') await caller.deliver('n1', summaryOf(lease));
      }
      clock.advance(1_000);
      expect(await caller.lease('n1', 10)).toEqual([]);
      const held = await status();
      expect(held.trainers).toMatchObject([
        { trainer: 'quick', held_back: null },
        {
          trainer: 'slow',
          queued: 3,
          uncollected_results: 3,
          held_back: expect.stringContaining('max_uncollected_results is 3'),
        },
      ]);
      expect(held.holding_back).toContainEqual({
        limit: 'max_uncollected_results',
        where: 'trainer slow',
        count: 3,
        what: 'queued sessions',
      });
      expect(held.counters.claims_held_back).toBe(1);
      expect(held.bottleneck).toMatchObject({ name: 'trainer', why: expect.stringContaining('slow') });
      await caller.call('GET', '/rollout/results?trainer=slow&after=3');
      await caller.call('GET', '/rollout/results?after=5');
      clock.advance(1_000);
      expect(count(await caller.lease('n1', 10))).toEqual({ slow: 3 });
    });

    it('are listed as held back only while they have queued sessions', async () => {
      await start({ max_uncollected_results: 1 });
      const listed = async () => (await status()).holding_back.map(({ where, count }) => [where, count]);
      await caller.submit(task({ trainer: 'slow' }));
      const [lease] = await caller.lease('n1');
      await caller.deliver('n1', summaryOf(lease as Lease));
      expect((await status()).trainers).toMatchObject([{ queued: 0, held_back: expect.any(String) }]);
      expect(await listed()).toEqual([]);
      await caller.submit(task({ trainer: 'slow' }));
      expect(await listed()).toEqual([['trainer slow', 1]]);
    });

    it('are held back only by ended tasks, not by running ones, when they use callbacks', async () => {
      await start({ max_uncollected_results: 2 });
      // No server listens on this callback port, so the results of ended tasks stay uncollected.
      const called = { callback_url: 'http://127.0.0.1:9/done', num_samples: 4 };
      await caller.submit(task(called));
      await caller.submit(task({ ...called, task_id: 'next' }));
      for (const wanted of [2, 2]) {
        const leases = await caller.lease('n1', wanted);
        expect(leases).toHaveLength(wanted);
        for (const lease of leases) await caller.deliver('n1', summaryOf(lease));
        clock.advance(1_000);
      }
      expect(await caller.lease('n1', 4)).toEqual([]);
      expect((await status()).trainers[0]).toMatchObject({ queued: 4, uncollected_results: 4 });
    });

    it('are held back by the size of large results', async () => {
      await start({ max_uncollected_bytes: 50 });
      await caller.submit(task({ num_samples: 2 }));
      await caller.deliver(
        'n1',
        summaryOf((await caller.lease('n1'))[0] as Lease),
        Buffer.from(`{"x":"${'y'.repeat(60)}"}`),
      );
      clock.advance(1_000);
      expect(await caller.lease('n1')).toEqual([]);
      expect((await status()).trainers[0]?.held_back).toContain('max_uncollected_bytes is 50');
    });
  });

  describe('longest first', () => {
    const longest = { queue_order: 'longest_first' } as const;

    async function learn(key: string, runningMs: number): Promise<void> {
      await caller.submit(task({ task_id: `teach-${key}`, duration_key: key }));
      const [lease] = await caller.lease('n1');
      if (lease === undefined) throw new Error('a session was queued');
      const { timing } = summaryOf(lease);
      await caller.deliver('n1', summaryOf(lease, 'completed', { timing: { ...timing, running_ms: runningMs } }));
      clock.advance(10_000);
    }

    const order = async (slots = 10): Promise<string[]> =>
      (await caller.lease('n1', slots)).map((lease) => lease.task_id);

    it('uses the durations of sessions with the same key, and the mean for unknown ones', async () => {
      await start(longest);
      await learn('short', 1_000);
      await learn('long', 100_000);
      await caller.submit(task({ task_id: 's', duration_key: 'short' }));
      await caller.submit(task({ task_id: 'new', duration_key: 'never seen' }));
      await caller.submit(task({ task_id: 'l', duration_key: 'long' }));
      expect(await order()).toEqual(['l', 'new', 's']);
    });

    it('starves no session: one that waited several times its own duration goes first', async () => {
      await start(longest);
      await learn('short', 1_000);
      await learn('long', 100_000);
      await caller.submit(task({ task_id: 's', duration_key: 'short' }));
      await caller.submit(task({ task_id: 'l1', duration_key: 'long' }));
      expect(await order(1)).toEqual(['l1']);
      await caller.submit(task({ task_id: 'l2', duration_key: 'long' }));
      clock.advance(4_100);
      expect(await order(1)).toEqual(['s']);
      expect(await order()).toEqual(['l2']);
    });

    it('never puts a long wait before a higher priority', async () => {
      await start(longest);
      await learn('short', 1_000);
      await caller.submit(task({ task_id: 'waited', duration_key: 'short' }));
      clock.advance(60_000);
      await caller.submit(task({ task_id: 'urgent', duration_key: 'short', dispatch_priority: 1 }));
      expect(await order(1)).toEqual(['urgent']);
    });

    it('ignores sessions that were cut short', async () => {
      await start(longest);
      await learn('long', 5_000);
      await learn('short', 4_000);
      await caller.submit(task({ duration_key: 'long' }));
      const [lease] = await caller.lease('n1');
      await caller.deliver('n1', summaryOf(lease as Lease, 'agent_timeout', { reward: null }));
      await caller.submit(task({ task_id: 'expected-4s', duration_key: 'short' }));
      await caller.submit(task({ task_id: 'expected-5s', duration_key: 'long' }));
      // The run that timed out took 1 ms. If it counted, sessions of key `long` would be expected to take 2.5 s and would be leased last.
      expect(await order()).toEqual(['expected-5s', 'expected-4s']);
    });

    it('distinguishes keys by instruction and harness, and from given keys', () => {
      const of = (fields: object) => durationKeyOf(taskRequestSchema.parse(task(fields)));
      expect(of({})).toBe(of({ num_samples: 4 }));
      expect(of({ instruction: 'other' })).not.toBe(of({}));
      expect(of({ agent: { harness: 'pi' } })).not.toBe(of({}));
      expect(of({ duration_key: of({}) })).not.toBe(of({}));
    });
  });

  it('never hands out sessions of a cancelled task, and does not delay others because of them', async () => {
    await start();
    await caller.submit(task({ task_id: 'big', num_samples: 1000 }));
    await caller.submit(task({ task_id: 'next' }));
    await caller.call('DELETE', '/rollout/task/big');
    // The queued sessions of the cancelled task are ended when a claim finds them, and the node gets the next task's session instead.
    expect((await caller.lease('n1', 10)).map((lease) => lease.task_id)).toEqual(['next']);
    await running.server.sweep();
    expect(await caller.taskStatus('big')).toMatchObject({ status: 'cancelled', completed_sessions: 1000 });
  });

  describe('a node leases sessions ahead', () => {
    /** Makes two nodes with ten sessions each and `queued` sessions in the queue. The first node has delivered one of its sessions. */
    async function busyNodes(queued: number, initMs = 1_000): Promise<Lease[]> {
      await start();
      await caller.register('n2', { max_run_workers: 1000 });
      await caller.submit(task({ num_samples: 20 }));
      const [first, ...held] = await caller.lease('n1', 10);
      await caller.lease('n2', 10);
      const { timing } = summaryOf(first as Lease);
      const ended = { ...timing, init_ms: initMs, running_ms: 100_000 };
      await caller.deliver('n1', summaryOf(first as Lease, 'completed', { timing: ended }));
      if (queued > 0) await caller.submit(task({ num_samples: queued + 1 }));
      clock.advance(2_000);
      await caller.lease('n2');
      return held;
    }
    const mayLeaseAhead = async (held: readonly Lease[]): Promise<boolean> =>
      (await caller.heartbeat('n1', held)).lease_ahead ?? true;

    it.each([
      [0, false],
      [9, false],
      [10, true],
    ])('while the queue has at least half as many sessions as all nodes hold: %i of 20', async (queued, expected) => {
      expect(await mayLeaseAhead(await busyNodes(queued))).toBe(expected);
    });

    it('when INIT takes more than a fiftieth of the time of RUN, however short the queue is', async () => {
      expect(await mayLeaseAhead(await busyNodes(1, 2_100))).toBe(true);
    });

    it('when it holds all sessions that are leased', async () => {
      const held = await busyNodes(1);
      expect(await mayLeaseAhead([...held, ...held, ...held])).toBe(true);
    });

    it('by the last known queue while the queue is read again', async () => {
      const scheduling = new Scheduling(rolloutConfigSchema.parse({}), clock);
      vi.spyOn(scheduling.stages, 'current').mockReturnValue({ init_ms: 1, running_ms: 1_000 } as ReturnType<
        typeof scheduling.stages.current
      >);
      const reads = [Promise.resolve([{ trainer: 'default', memory_mb: 1, sessions: 50 }]), new Promise(() => {})];
      const sessions = {
        waitingTrainers: async () => ['default'],
        loads: async () => [{ trainer: 'default', live: 20, uncollected_results: 0, uncollected_bytes: 0 }],
        queued: () => reads.shift(),
        claim: async () => [],
      };
      const tables = { sessions } as unknown as StoreTables;
      const node = { nodeId: 'n1', slots: 1, memory: null, nowMs: 0, leaseExpiresMs: 1, updatedAt: '' };
      await scheduling.claim(tables, node);
      expect(scheduling.mayLeaseAhead(1)).toBe(true);
      clock.advance(10_000);
      void scheduling.claim(tables, node);
      await new Promise((resolve) => void setImmediate(resolve));
      expect(reads).toHaveLength(0);
      expect(scheduling.mayLeaseAhead(1)).toBe(true);
    });

    it('until the queue is empty, without reading the loads once more', async () => {
      const held = await busyNodes(12);
      expect(await mayLeaseAhead(held)).toBe(true);
      expect(await caller.lease('n2', 12)).toHaveLength(12);
      expect(await mayLeaseAhead(held)).toBe(false);
    });

    it('until a node finds the queue empty, because other servers or a cancel emptied it', async () => {
      const held = await busyNodes(0);
      const { task_id: taskId } = await caller.submit(task({ num_samples: 50 }));
      clock.advance(2_000);
      await caller.lease('n2');
      expect(await mayLeaseAhead(held)).toBe(true);
      await caller.call('DELETE', `/rollout/task/${taskId}`);
      expect(await caller.lease('n2')).toEqual([]);
      expect(await mayLeaseAhead(held)).toBe(false);
    });

    it('only when sessions are queued whose trainers are not held back', async () => {
      await start({ max_uncollected_results: 1 });
      await caller.register('n2', { max_run_workers: 1000 });
      await caller.submit(task({ trainer: 'slow', num_samples: 50 }));
      const [first, ...held] = await caller.lease('n1', 5);
      await caller.lease('n2', 5);
      const { timing } = summaryOf(first as Lease);
      const ended = { ...timing, init_ms: 1_000, running_ms: 100_000 };
      await caller.deliver('n1', summaryOf(first as Lease, 'completed', { timing: ended }));
      clock.advance(2_000);
      expect(await caller.lease('n2')).toEqual([]);
      expect(await mayLeaseAhead(held)).toBe(false);
    });
  });
});
