import { VirtualClock } from '@floe-rl/core';
import type { AttemptView, Lease, Outcome } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { type Running, summaryOf, TRAJECTORY, task, Workbench } from '../workbench.ts';

const LEASE_MS = 10_000;
const AVOID_MS = 20_000;

let bench: Workbench;
let clock: VirtualClock;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
  running = await bench.server({
    lease_seconds: LEASE_MS / 1000,
    retry_backoff_seconds: 1,
    avoid_node_seconds: AVOID_MS / 1000,
    node_timeout_seconds: 60,
  });
  caller = new Caller(running.server);
  await caller.register('n1');
});
afterEach(() => bench.dispose());

async function leaseOne(nodeId = 'n1'): Promise<Lease> {
  const [lease] = await caller.lease(nodeId);
  if (lease === undefined) throw new Error('there was nothing to lease');
  return lease;
}

/** Leases an attempt and ends it with `outcome`. Returns whether the session is queued for another attempt. */
async function attempt(outcome: Outcome): Promise<boolean> {
  clock.advance(60_000);
  await caller.heartbeat('n1', []);
  const { body } = await caller.deliver('n1', summaryOf(await leaseOne(), outcome));
  return body.requeued;
}

async function attemptsOf(sessionId: string): Promise<AttemptView[]> {
  return (await caller.call<{ attempts: AttemptView[] }>('GET', `/sessions/${sessionId}/attempts`)).body.attempts;
}

describe('the server', () => {
  it('prefers another node after a failure, and the same one only later', async () => {
    await caller.register('n2');
    await caller.submit(task());
    await caller.deliver('n1', summaryOf(await leaseOne(), 'engine_error'));
    clock.advance(1_000);
    await caller.heartbeat('n2', []);
    expect(await caller.lease('n1')).toEqual([]);
    clock.advance(AVOID_MS - 1);
    expect(await caller.lease('n1')).toEqual([]);
    clock.advance(1);
    expect(await caller.lease('n1')).toMatchObject([{ attempt: 2 }]);
  });

  it('uses the same node after the back-off when no other node could take the session', async () => {
    await caller.register('draining');
    await caller.call('DELETE', '/nodes/draining');
    await caller.submit(task());
    await caller.deliver('n1', summaryOf(await leaseOne(), 'engine_error'));
    clock.advance(999);
    expect(await caller.lease('n1')).toEqual([]);
    clock.advance(1);
    expect(await caller.lease('n1')).toMatchObject([{ attempt: 2 }]);
  });

  it('retries after other outcomes when the task requests it, up to its limit', async () => {
    const { task_id: id } = await caller.submit(
      task({ max_attempts: 9, outcome_policy: { agent_error: { retries: 2 }, infra_error: { retries: 0 } } }),
    );
    expect(await attempt('agent_error')).toBe(true);
    expect(await attempt('engine_error')).toBe(true);
    expect(await attempt('agent_error')).toBe(true);
    expect(await attempt('agent_error')).toBe(false);
    expect((await caller.taskStatus(id)).results).toMatchObject([{ outcome: 'agent_error', attempt: 4 }]);
    await caller.submit(task({ outcome_policy: { infra_error: { retries: 0 } } }));
    expect(await attempt('infra_error')).toBe(false);
    expect(await caller.counters()).toMatchObject({ retries: 3, given_up: 1 });
  });

  it('limits the attempts of all outcomes together by max_attempts', async () => {
    await caller.submit(task({ max_attempts: 2, outcome_policy: { agent_error: { retries: 9 } } }));
    expect(await attempt('agent_error')).toBe(true);
    expect(await attempt('infra_error')).toBe(false);
    expect(await caller.counters()).toMatchObject({ retries: 1, given_up: 1 });
  });

  it('counts an expired lease as infra_error, but not an attempt that was handed back', async () => {
    await caller.submit(task({ max_attempts: 9, outcome_policy: { infra_error: { retries: 1 } } }));
    const handedBack = { error: { code: 'not_ready', message: 'shutting down', stage: null, details: {} } };
    const reply = await caller.deliver('n1', summaryOf(await leaseOne(), 'infra_error', handedBack));
    expect(reply.body.requeued).toBe(true);
    await leaseOne();
    clock.advance(LEASE_MS);
    await running.server.sweep();
    expect(await attempt('infra_error')).toBe(false);
  });

  it('ends a session whose attempts were lost with two nodes, whatever attempts it has left', async () => {
    const { task_id: id } = await caller.submit(
      task({ max_attempts: 9, outcome_policy: { infra_error: { retries: 9 } } }),
    );
    const handedBack = { error: { code: 'not_ready', message: 'shutting down', stage: null, details: {} } };
    await caller.deliver('n1', summaryOf(await leaseOne(), 'infra_error', handedBack));
    await leaseOne();
    clock.advance(LEASE_MS);
    await running.server.sweep();
    // An `infra_error` that the node itself reports does not count as a loss of the node.
    expect(await attempt('infra_error')).toBe(true);
    clock.advance(60_000);
    await caller.heartbeat('n1', []);
    const lease = await leaseOne();
    const { session_id: session } = lease;
    await caller.heartbeat('n1', [lease]);
    clock.advance(LEASE_MS);
    await running.server.sweep();
    expect((await caller.taskStatus(id)).results).toMatchObject([
      {
        ...{ outcome: 'infra_error', reward: null, attempt: 4 },
        error: {
          code: 'node_died',
          message: expect.stringContaining(
            `node n1 was silent for 10 s in attempt 4; 2 attempts of session ${session} were lost with their nodes`,
          ),
          details: { node_losses: 2, attempts: 4 },
        },
      },
    ]);
    expect(await caller.lease('n1')).toEqual([]);
    expect(await caller.counters()).toMatchObject({ given_up: 1 });
  });

  it('leases a session again whose attempts were lost before their nodes began them', async () => {
    await caller.submit(task({ max_attempts: 4, outcome_policy: { infra_error: { retries: 4 } } }));
    for (let attempts = 1; attempts <= 3; attempts++) {
      expect((await leaseOne()).attempt).toBe(attempts);
      clock.advance(LEASE_MS);
      await running.server.sweep();
      clock.advance(60_000);
      await caller.heartbeat('n1', []);
    }
    expect((await leaseOne()).attempt).toBe(4);
  });

  it('counts an attempt that failed because an engine was not ready as a failed attempt', async () => {
    await caller.submit(task({ max_attempts: 2 }));
    const notReady = { error: { code: 'not_ready', message: 'the engine is loading', stage: null, details: {} } };
    for (const requeued of [true, false]) {
      const { body } = await caller.deliver('n1', summaryOf(await leaseOne(), 'engine_error', notReady));
      expect(body.requeued).toBe(requeued);
      clock.advance(1_000);
    }
    expect(await caller.counters()).toMatchObject({ retries: 1, given_up: 1 });
  });

  it('lists every attempt that was delivered', async () => {
    const { session_ids: ids } = await caller.submit(task());
    const id = ids[0] ?? '';
    expect(await attemptsOf(id)).toEqual([]);
    const failed = Buffer.from('{"traces":[]}');
    await caller.deliver('n1', summaryOf(await leaseOne(), 'engine_error'), failed);
    clock.advance(1_000);
    await caller.deliver('n1', summaryOf(await leaseOne(), 'completed'));
    expect(await attemptsOf(id)).toMatchObject([
      { attempt: 1, epoch: 1, kind: 'retried', parts: ['trajectory'], summary: { outcome: 'engine_error' } },
      {
        attempt: 2,
        epoch: 2,
        kind: 'result',
        parts: ['trajectory'],
        summary: { outcome: 'completed', unusable: null },
      },
    ]);
    const trajectory = (query: string) => caller.call<unknown>('GET', `/sessions/${id}/trajectory${query}`);
    expect((await trajectory('?attempt=1')).body).toEqual({ traces: [] });
    expect((await trajectory('?attempt=2')).body).toEqual(JSON.parse(TRAJECTORY.toString()));
    const message = `attempt 3 of session ${id} has no trajectory`;
    expect(await trajectory('?attempt=3')).toMatchObject({
      status: 404,
      body: { error: { message, details: { attempt: 3 } } },
    });
    expect(await caller.call('GET', '/sessions/unknown/attempts')).toMatchObject({
      status: 404,
      body: { error: { code: 'not_found', message: 'session unknown is not known' } },
    });
    expect((await trajectory('?attempt=x')).status).toBe(422);
  });

  it('refuses and counts late results', async () => {
    const { task_id: id } = await caller.submit(task({ num_samples: 2 }));
    const lost = await leaseOne();
    clock.advance(LEASE_MS);
    await running.server.sweep();
    expect(await caller.deliver('n1', summaryOf(lost))).toMatchObject({
      status: 409,
      body: { error: { code: 'stale_epoch' } },
    });
    expect(await caller.counters()).toMatchObject({ stale_results: 1, late_results: 0 });
    await caller.call('DELETE', `/rollout/task/${id}`);
    expect((await caller.deliver('n1', summaryOf(lost))).body.error.code).toBe('cancelled');
    expect(await caller.counters()).toMatchObject({ stale_results: 1, late_results: 1 });
  });
});
