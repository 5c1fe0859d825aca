import { afterEach, beforeEach, expect, test } from 'vitest';
import { VirtualClock } from '../../../src/core/virtual-clock.ts';
import type { ResultsPage, SessionView, TaskStatus } from '../../../src/schema/index.ts';
import { Caller } from '../call.ts';
import { type Running, summaryOf, task, Workbench } from '../workbench.ts';

/** More than two transactions cancel. */
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

test('a large task is cancelled at once and ended in batches, leased sessions first, a restart in between', async () => {
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

test('while a listening server ends a large cancelled task, results of others go on', async () => {
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

test('a result that comes after the cancel is refused, although its session has not been ended yet', async () => {
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

test('an early stop of a large task ends in batches too, and the task is completed', async () => {
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

test('what has not ended by its deadline is cancelled, and says so', async () => {
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

test('a cancel by the trainer says nothing of a deadline, even when it is ended after that', async () => {
  await caller.submit(task({ task_id: 'big', num_samples: MANY, deadline_seconds: 60 }));
  await cancel('big');
  clock.advance(60_000);
  await restart();
  await running.server.sweep();
  const { results } = await caller.taskStatus('big');
  expect(results).toHaveLength(MANY);
  expect(results.every((result) => result.error === null)).toBe(true);
});
