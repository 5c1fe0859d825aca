import { VirtualClock } from '@floe-rl/core';
import type { ResultsPage, SessionView, TaskStatus } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { type Running, summaryOf, task, Workbench } from '../workbench.ts';

/** Number of sessions of a large task. It exceeds the 400 sessions that two transactions can cancel. */
const MANY = 450;

let bench: Workbench;
let clock: VirtualClock;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
  running = await bench.server({ lease_seconds: 600 });
  caller = new Caller(running.server);
  await caller.register('n1');
});
afterEach(() => bench.dispose());

const cancel = async (id: string) => (await caller.call<TaskStatus>('DELETE', `/rollout/task/${id}`)).body;

async function restart(): Promise<void> {
  await running.close();
  running = await bench.server({ lease_seconds: 600 });
  caller = new Caller(running.server);
}

async function sessionsOf(id: string): Promise<SessionView[]> {
  return (await caller.call<{ sessions: SessionView[] }>('GET', `/tasks/${id}/sessions`)).body.sessions;
}

describe('a cancellation', () => {
  it('is immediate for a large task, whose sessions end in batches, leased ones first, even over a restart', async () => {
    await caller.submit(task({ task_id: 'big', num_samples: MANY }));
    const leases = await caller.lease('n1', 5);
    const reply = await cancel('big');
    expect(reply.status).toBe('cancelled');
    expect(reply.completed_sessions).toBeLessThan(MANY);
    const { stop } = await caller.heartbeat('n1', leases);
    expect(stop.map((one) => one.session_id).sort()).toEqual(leases.map((lease) => lease.session_id).sort());
    expect(await caller.lease('n1', 50)).toEqual([]);
    await restart();
    expect(await caller.lease('n1', 50)).toEqual([]);
    await running.server.sweep();
    expect(await caller.taskStatus('big')).toMatchObject({
      status: 'cancelled',
      completed_sessions: MANY,
      group: { open: 0, unusable: { cancelled: MANY } },
    });
    const sessions = await sessionsOf('big');
    expect(sessions.map((session) => session.sample_index)).toEqual(Array.from({ length: MANY }, (_, i) => i));
    expect(new Set(sessions.map((session) => session.status))).toEqual(new Set(['CANCELLED']));
    const { body } = await caller.call<ResultsPage>('GET', '/rollout/results?limit=1000');
    expect(new Set(body.results.map((result) => result.session_id)).size).toBe(MANY);
    expect(body.results).toHaveLength(MANY);
  });

  it('does not delay results of other tasks while a large task ends', async () => {
    const client = await running.client();
    await client.submit(task({ task_id: 'big', num_samples: MANY }));
    await client.submit(task({ task_id: 'other', num_samples: 1 }));
    const [reply, leases] = await Promise.all([client.cancel('big'), caller.lease('n1', 1)]);
    expect(reply.status).toBe('cancelled');
    for await (const result of client.results()) if (result.cursor === MANY) break;
    const open = leases[0]?.task_id === 'other' ? leases : await caller.lease('n1', 1);
    expect(open.map((lease) => lease.task_id)).toEqual(['other']);
    expect(await client.task('big')).toMatchObject({ completed_sessions: MANY });
  });

  it('refuses a later result although its session has not ended yet', async () => {
    await caller.register('n2');
    await caller.submit(task({ task_id: 'big', num_samples: MANY }));
    const leases = (await Promise.all(Array.from({ length: 25 }, () => caller.lease('n1', 10)))).flat();
    await cancel('big');
    for (const lease of leases) {
      const reply = await caller.deliver('n1', summaryOf(lease));
      expect(reply).toMatchObject({ status: 409, body: { error: { code: 'cancelled' } } });
    }
    await running.server.sweep();
    expect((await caller.taskStatus('big')).group).toMatchObject({ usable: 0, unusable: { cancelled: MANY } });
  });

  it('ends an early-stopped large task in batches too, and completes it', async () => {
    await caller.submit(task({ task_id: 'big', num_samples: MANY, early_stop_min_usable_sessions: 1, refill: 5 }));
    const [lease] = await caller.lease('n1', 1);
    if (lease === undefined) throw new Error('sessions were queued');
    await caller.deliver('n1', summaryOf(lease));
    expect(await caller.taskStatus('big')).toMatchObject({ status: 'running', group: { early_stopped: true } });
    expect(await caller.lease('n1', 50)).toEqual([]);
    expect((await cancel('big')).group.early_stopped).toBe(true);
    await restart();
    await running.server.sweep();
    expect(await caller.taskStatus('big')).toMatchObject({
      status: 'completed',
      total_sessions: MANY,
      completed_sessions: MANY,
      group: { usable: 1, unusable: { cancelled: MANY - 1 }, early_stopped: true },
    });
  });

  it('ends a task at its deadline, and reports that', async () => {
    await caller.submit(task({ task_id: 't', num_samples: 3, deadline_seconds: 60 }));
    await caller.submit(task({ task_id: 'done', deadline_seconds: 60 }));
    const leases = await caller.lease('n1', 4);
    for (const lease of leases.filter((one) => one.task_id === 'done' || one.sample_index === 0)) {
      await caller.deliver('n1', summaryOf(lease));
    }
    clock.advance(59_999);
    await running.server.sweep();
    expect((await caller.taskStatus('t')).status).toBe('running');
    clock.advance(1);
    await running.server.sweep();
    const status = await caller.taskStatus('t');
    expect(status).toMatchObject({ status: 'cancelled', completed_sessions: 3, group: { usable: 1 } });
    expect(status.results.slice(1)).toMatchObject([
      { outcome: 'cancelled', error: { code: 'deadline_exceeded', message: expect.stringContaining('(60)') } },
      { outcome: 'cancelled', error: { code: 'deadline_exceeded' } },
    ]);
    expect((await caller.taskStatus('done')).status).toBe('completed');
    expect(await caller.counters()).toMatchObject({ deadlines: 1 });
    await running.server.sweep();
    expect(await caller.counters()).toMatchObject({ deadlines: 1 });
  });

  it('does not report a deadline when a trainer cancels, even if sessions end after it', async () => {
    await caller.submit(task({ task_id: 'big', num_samples: MANY, deadline_seconds: 60 }));
    await cancel('big');
    clock.advance(60_000);
    await restart();
    await running.server.sweep();
    const { results } = await caller.taskStatus('big');
    expect(results).toHaveLength(MANY);
    expect(results.every((result) => result.error === null)).toBe(true);
  });
});
