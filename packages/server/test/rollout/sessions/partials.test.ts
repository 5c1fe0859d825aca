import { VirtualClock } from '@floe-rl/core';
import type { AttemptView, Lease, SessionResult } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { COMPLETIONS, type Running, summaryOf, TRAJECTORY, task, Workbench } from '../workbench.ts';

const LEASE_MS = 10_000;

let bench: Workbench;
let clock: VirtualClock;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
  running = await bench.server({ lease_seconds: LEASE_MS / 1000 });
  caller = new Caller(running.server);
  await caller.register('n1');
});
afterEach(() => bench.dispose());

async function leaseOne(): Promise<Lease> {
  const [lease] = await caller.lease('n1');
  if (lease === undefined) throw new Error('there was nothing to lease');
  return lease;
}

async function lose(): Promise<void> {
  clock.advance(LEASE_MS);
  await running.server.sweep();
}

async function attemptsOf(sessionId: string): Promise<AttemptView[]> {
  return (await caller.call<{ attempts: AttemptView[] }>('GET', `/sessions/${sessionId}/attempts`)).body.attempts;
}

describe('the server', () => {
  it('keeps the partial result of an attempt that lost its lease once, and changes nothing else', async () => {
    await caller.submit(task());
    const lost = await leaseOne();
    await lose();
    const before = await caller.session(lost.session_id);
    const remains = summaryOf(lost, 'infra_error', { reward: 1 });
    expect(await caller.deliverPartial('n1', remains)).toEqual({
      status: 200,
      body: { session_id: lost.session_id, duplicate: false },
    });
    expect((await caller.deliverPartial('n1', remains)).body.duplicate).toBe(true);
    expect((await caller.deliverPartial('n1', remains, null)).body.duplicate).toBe(true);
    expect(await caller.session(lost.session_id)).toEqual(before);
    expect(await attemptsOf(lost.session_id)).toMatchObject([
      {
        attempt: 1,
        epoch: 1,
        kind: 'partial',
        parts: ['trajectory'],
        summary: { unusable: 'infra_error', node_id: 'n1' },
      },
    ]);
    expect(await caller.counters()).toMatchObject({ partials_kept: 1 });

    const again = await leaseOne();
    await caller.deliver('n1', summaryOf(again));
    const { body } = await caller.call<{ results: SessionResult[] }>('GET', '/rollout/results');
    expect(body.results).toMatchObject([{ attempt: 2, outcome: 'completed' }]);
    expect((await attemptsOf(lost.session_id)).map((one) => one.kind)).toEqual(['partial', 'result']);
    const old = await caller.call('GET', `/sessions/${lost.session_id}/trajectory?attempt=1`);
    expect(old.body).toEqual(JSON.parse(TRAJECTORY.toString()));
  });

  it('accepts partial results with their completions from the client', async () => {
    const client = await running.client();
    const node = await running.node('n2');
    await client.submit(task());
    const [lease] = await node.lease({ slots: 1, wait_seconds: 0 });
    if (lease === undefined) throw new Error('a session was queued');
    const result = {
      summary: summaryOf(lease, 'infra_error'),
      trajectory: null,
      completions: COMPLETIONS,
      artifacts: null,
    };
    expect((await node.deliverPartial(result)).duplicate).toBe(false);
    expect(await client.attempts(lease.session_id)).toMatchObject([{ kind: 'partial', parts: ['completions'] }]);
    expect(await client.completions(lease.session_id, { attempt: 1 })).toEqual(COMPLETIONS);
    await expect(client.trajectory(lease.session_id, { attempt: 1 })).rejects.toMatchObject({ code: 'not_found' });
  });

  it('replaces the partial result of an attempt that turns out to be alive by its result', async () => {
    const { task_id: id } = await caller.submit(task());
    const lease = await leaseOne();
    await caller.deliverPartial('n1', summaryOf(lease, 'infra_error'), Buffer.from('{"partial":true}'));
    expect((await caller.deliver('n1', summaryOf(lease))).body).toMatchObject({ duplicate: false, requeued: false });
    expect((await caller.deliver('n1', summaryOf(lease))).body.duplicate).toBe(true);
    expect(await attemptsOf(lease.session_id)).toMatchObject([{ kind: 'result', summary: { outcome: 'completed' } }]);
    expect((await caller.taskStatus(id)).group.usable).toBe(1);
    expect((await caller.deliverPartial('n1', summaryOf(lease, 'infra_error'))).body.duplicate).toBe(true);
    expect((await attemptsOf(lease.session_id)).map((one) => one.kind)).toEqual(['result']);
  });

  it('refuses the partial result of an attempt that never existed', async () => {
    await caller.submit(task({ task_id: 't' }));
    const queued = await caller.call<{ sessions: { session_id: string }[] }>('GET', '/tasks/t/sessions');
    const named = { session_id: queued.body.sessions[0]?.session_id ?? '', task_id: 't', sample_index: 0, attempt: 1 };
    const post = (fields: object) =>
      caller.deliverPartial('n1', summaryOf({ ...named, epoch: 1, ...fields }, 'infra_error'));
    expect(await post({})).toMatchObject({ status: 404 });
    await leaseOne();
    expect(await post({ epoch: 2 })).toMatchObject({ status: 404 });
    expect(await post({ epoch: 0 })).toMatchObject({ status: 404 });
    expect(await post({ attempt: 2 })).toMatchObject({ status: 404 });
    expect(await post({ session_id: 'nobody' })).toMatchObject({ status: 404 });
    expect(await post({ sample_index: 1 })).toMatchObject({ status: 422 });
    expect((await post({})).status).toBe(200);
  });

  it('keeps the partial result of a cancelled session, which stays cancelled', async () => {
    const { task_id: id } = await caller.submit(task());
    const lease = await leaseOne();
    await caller.call('DELETE', `/rollout/task/${id}`);
    expect((await caller.deliverPartial('n1', summaryOf(lease, 'infra_error'))).body.duplicate).toBe(false);
    expect((await caller.taskStatus(id)).results).toMatchObject([{ outcome: 'cancelled', trainable_tokens: 0 }]);
    expect((await attemptsOf(lease.session_id)).map((one) => one.kind)).toEqual(['partial']);
  });
});
