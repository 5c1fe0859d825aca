import { VirtualClock } from '@floe-rl/core';
import type { Lease, Outcome, RolloutEvent, SessionResult, SessionSummary, TaskSummary } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { type Running, summaryOf, task, Workbench } from '../workbench.ts';

const EVALUATOR = { strategy: 'session_completed', config: {} };

let bench: Workbench;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  bench = await Workbench.create(new VirtualClock());
  running = await bench.server();
  caller = new Caller(running.server);
  await caller.register('n1');
});
afterEach(() => bench.dispose());

async function end(lease: Lease | undefined, outcome: Outcome, fields: Partial<SessionSummary> = {}) {
  if (lease === undefined) throw new Error('there was nothing to lease');
  return caller.deliver('n1', summaryOf(lease, outcome, fields));
}

describe('a group', () => {
  it('reports how many of its samples are usable, and why the others are not', async () => {
    const { task_id: id } = await caller.submit(task({ num_samples: 6, evaluator: EVALUATOR }));
    const [a, b, c, d, e] = await caller.lease('n1', 5);
    await end(a, 'completed', { reward: 0 });
    await end(b, 'completed', { trainable_tokens: 0 });
    await end(c, 'completed', { reward: null });
    await end(d, 'agent_timeout', { reward: 0.5 });
    await end(e, 'env_error');
    const { group } = await caller.taskStatus(id);
    expect(group).toEqual({
      requested: 6,
      usable: 1,
      // Samples `a`, `b` and `d` count towards the mean reward of the group. `c` has no reward, and the environment of `e` failed.
      in_baseline: 3,
      unusable: { no_tokens: 1, no_reward: 1, agent_timeout: 1, env_error: 1 },
      open: 1,
      refilled: 0,
      early_stopped: false,
    });
    const sessions = await Promise.all([a, b, c, d, e].map((lease) => caller.session(lease?.session_id ?? '')));
    expect(sessions.map(({ summary }) => summary?.unusable)).toEqual([
      null,
      'no_tokens',
      'no_reward',
      'agent_timeout',
      'env_error',
    ]);
  });

  it('has a mean reward that ignores samples without a reward', async () => {
    const { task_id: id } = await caller.submit(task({ num_samples: 3, evaluator: EVALUATOR }));
    const mean = async (): Promise<unknown> => {
      const { body } = await caller.call<{ tasks: TaskSummary[] }>('GET', '/tasks');
      return body.tasks.find((row) => row.task_id === id)?.mean_reward;
    };
    const [a, b, c] = await caller.lease('n1', 3);
    await end(a, 'completed', { reward: null });
    expect(await mean()).toBeNull();
    await end(b, 'completed', { reward: 1 });
    await end(c, 'completed', { reward: 0.5 });
    expect(await mean()).toBe(0.75);
  });

  it('needs no reward without an evaluator', async () => {
    const { task_id: id } = await caller.submit(task({ num_samples: 1 }));
    const [lease] = await caller.lease('n1');
    await end(lease, 'completed', { reward: null });
    expect((await caller.taskStatus(id)).group).toMatchObject({ usable: 1, in_baseline: 1, unusable: {} });
  });

  it('applies the policy of the task, whatever the node reports', async () => {
    const { task_id: id } = await caller.submit(
      task({ num_samples: 2, outcome_policy: { agent_timeout: { use: 'train' }, completed: { in_baseline: false } } }),
    );
    const [late, good] = await caller.lease('n1', 2);
    await end(late, 'agent_timeout', { policy: { use: 'drop', in_baseline: false } });
    await end(good, 'completed', { unusable: 'infra_error' });
    const { results, group } = await caller.taskStatus(id);
    expect(results).toMatchObject([
      { outcome: 'agent_timeout', policy: { use: 'train', in_baseline: true }, unusable: null },
      { outcome: 'completed', policy: { use: 'train', in_baseline: false }, unusable: null },
    ]);
    expect(group).toMatchObject({ usable: 2, in_baseline: 1 });
  });

  it('has no reward for an infrastructure failure, even if the node reports one', async () => {
    await caller.submit(task({ max_attempts: 1 }));
    const [lease] = await caller.lease('n1');
    await end(lease, 'infra_error', { reward: 0, reward_components: { tests: 0 } });
    const { body } = await caller.call<{ results: SessionResult[] }>('GET', '/rollout/results');
    expect(body.results).toMatchObject([{ outcome: 'infra_error', reward: null }]);
    expect(body.results[0]?.reward_components).toEqual({});
  });

  it('does not use a sample that a hook of its node dropped, whatever the task says about its outcome', async () => {
    const policies = { completed: { use: 'train' as const, in_baseline: true } };
    const { task_id: id } = await caller.submit(task({ num_samples: 2, outcome_policy: policies }));
    const [dropped, good] = await caller.lease('n1', 2);
    await end(dropped, 'completed', { dropped: 'a duplicate' });
    await end(good, 'completed');
    const { results, group } = await caller.taskStatus(id);
    expect(results).toMatchObject([
      { dropped: 'a duplicate', policy: { use: 'drop', in_baseline: false }, unusable: 'dropped', reward: 1 },
      { dropped: null, unusable: null },
    ]);
    expect(group).toMatchObject({ usable: 1, in_baseline: 1, unusable: { dropped: 1 } });
  });

  it('returns the components of a reward as the node reported them', async () => {
    await caller.submit(task());
    const [lease] = await caller.lease('n1');
    await end(lease, 'completed', { reward_components: { tests: 1, style: null } });
    const { body } = await caller.call<{ results: SessionResult[] }>('GET', '/rollout/results');
    expect(body.results).toMatchObject([{ reward: 1, reward_components: { tests: 1, style: null } }]);
  });

  it('cancels the open sessions immediately once enough samples are usable, and completes the task', async () => {
    const { task_id: id } = await caller.submit(task({ num_samples: 6, early_stop_min_usable_sessions: 2 }));
    const events: RolloutEvent[] = [];
    running.server.subscribe((event) => events.push(event));
    const [a, b, c, d] = await caller.lease('n1', 4);
    await end(a, 'completed');
    await end(b, 'agent_error');
    expect((await caller.taskStatus(id)).status).toBe('running');
    await end(c, 'completed');
    const status = await caller.taskStatus(id);
    expect(status).toMatchObject({ status: 'completed', completed_sessions: 6 });
    expect(status.group).toMatchObject({
      usable: 2,
      unusable: { agent_error: 1, cancelled: 3 },
      open: 0,
      early_stopped: true,
    });
    expect(status.results.at(-1)?.error).toMatchObject({ code: 'cancelled' });
    expect(events.filter((event) => event.type === 'task.completed')).toEqual([
      { type: 'task.completed', task_id: id, status: 'completed', group: status.group },
    ]);
    // The node is ordered to stop session `d`, which it still runs. If the node delivers its result nevertheless, the result is refused.
    if (d === undefined) throw new Error('four were queued');
    const { stop } = await caller.heartbeat('n1', [d]);
    expect(stop).toEqual([{ session_id: d.session_id, epoch: d.epoch, reason: 'cancelled' }]);
    expect(await end(d, 'completed')).toMatchObject({ status: 409, body: { error: { code: 'cancelled' } } });
    expect(await caller.counters()).toMatchObject({ early_stops: 1, late_results: 1 });
    expect((await caller.taskStatus(id)).group.usable).toBe(2);
  });

  it('stops nothing when only the last sample reaches the early stop', async () => {
    const { task_id: id } = await caller.submit(task({ num_samples: 2, early_stop_min_usable_sessions: 2 }));
    for (const lease of await caller.lease('n1', 2)) await end(lease, 'completed');
    expect(await caller.taskStatus(id)).toMatchObject({
      status: 'completed',
      group: { usable: 2, early_stopped: false },
    });
  });

  it('refuses an early stop beyond the number of samples, and names the field', async () => {
    const { status, body } = await caller.call('POST', '/rollout/task/submit', {
      ...task({ num_samples: 3 }),
      early_stop_min_usable_sessions: 4,
    });
    expect(status).toBe(422);
    expect(body.error).toMatchObject({
      code: 'schema_violation',
      details: { issues: [{ path: 'early_stop_min_usable_sessions' }] },
    });
  });

  it('replaces an unusable sample while refills are left', async () => {
    const first = await caller.submit(task({ task_id: 't', num_samples: 2, refill: 2, dispatch_priority: 4 }));
    const [a, b] = await caller.lease('n1', 2);
    await end(a, 'agent_error');
    await end(a, 'agent_error');
    await end(b, 'completed');
    expect((await caller.taskStatus('t')).group).toMatchObject({ requested: 2, usable: 1, open: 1, refilled: 1 });
    const [c] = await caller.lease('n1', 5);
    expect(c).toMatchObject({ task_id: 't', sample_index: 2, attempt: 1, epoch: 1 });
    await end(c, 'env_error');
    const [d] = await caller.lease('n1', 5);
    expect(d).toMatchObject({ sample_index: 3 });
    await end(d, 'no_completions');
    expect(await caller.lease('n1', 5)).toEqual([]);
    const status = await caller.taskStatus('t');
    expect(status).toMatchObject({ status: 'completed', total_sessions: 4, completed_sessions: 4 });
    expect(status.group).toMatchObject({ requested: 2, usable: 1, refilled: 2, open: 0 });
    expect(await caller.counters()).toMatchObject({ refills: 2 });
    const again = await caller.submit(task({ task_id: 't', num_samples: 2, refill: 2, dispatch_priority: 4 }));
    expect(again).toEqual({ ...first, status: 'completed', duplicate: true });
  });

  it('replaces a session that its nodes lost, but not a cancelled one', async () => {
    const { session_ids: ids } = await caller.submit(task({ num_samples: 2, max_attempts: 1, refill: 9 }));
    const [lost] = await caller.lease('n1');
    const other = ids.find((id) => id !== lost?.session_id) ?? '';
    await caller.call('DELETE', `/sessions/${other}`);
    expect(await caller.lease('n1', 5)).toEqual([]);
    await end(lost, 'infra_error');
    const fresh = await caller.lease('n1', 5);
    expect(fresh).toMatchObject([{ sample_index: 2, attempt: 1 }]);
  });

  it('adds no refills after an early stop', async () => {
    const { task_id: id } = await caller.submit(task({ num_samples: 3, refill: 9, early_stop_min_usable_sessions: 1 }));
    const [a, b] = await caller.lease('n1', 2);
    await end(a, 'agent_error');
    await end(b, 'completed');
    expect(await caller.lease('n1', 5)).toEqual([]);
    const status = await caller.taskStatus(id);
    expect(status).toMatchObject({ status: 'completed', total_sessions: 4 });
    expect(status.group).toMatchObject({ usable: 1, refilled: 1, early_stopped: true });
  });
});
