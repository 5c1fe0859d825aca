import type { TaskStatus } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type Answer, Caller } from '../call.ts';
import { type Running, summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let running: Running;
let caller: Caller;
beforeEach(async () => {
  bench = await Workbench.create();
  running = await bench.server();
  caller = new Caller(running.server);
  await caller.register('n1');
});
afterEach(() => bench.dispose());

describe('a request for a task with a wait', () => {
  it('is answered when the last session has ended, and not when an earlier one has', async () => {
    const { task_id } = await caller.submit(task({ num_samples: 2 }));
    const leases = await caller.lease('n1', 2);
    const answers: Answer<TaskStatus>[] = [];
    const held = caller
      .call<TaskStatus>('GET', `/rollout/task/${task_id}?wait=60&results=full`)
      .then((answer) => answers.push(answer));
    for (const lease of leases) {
      expect(answers).toEqual([]);
      await caller.deliver('n1', summaryOf(lease));
    }
    await held;
    expect(answers).toMatchObject([{ status: 200, body: { status: 'completed', completed_sessions: 2 } }]);
  });

  it('is answered when the task is cancelled', async () => {
    const { task_id } = await caller.submit(task());
    const held = caller.call<TaskStatus>('GET', `/rollout/task/${task_id}?wait=60`);
    await caller.call('DELETE', `/rollout/task/${task_id}`);
    expect((await held).body).toMatchObject({ status: 'cancelled', results: [{ outcome: 'cancelled' }] });
  });

  it('is answered with the state of the running task when the wait has passed', async () => {
    const { task_id } = await caller.submit(task());
    const { body } = await caller.call<TaskStatus>('GET', `/rollout/task/${task_id}?wait=0.01`);
    expect(body).toMatchObject({ status: 'running', completed_sessions: 0 });
  });

  it('is refused immediately for an unknown task, and with a wait of more than 60 s', async () => {
    expect(await caller.call('GET', '/rollout/task/none?wait=60')).toMatchObject({
      status: 404,
      body: { error: { code: 'not_found' } },
    });
    expect(await caller.call('GET', '/rollout/task/none?wait=61')).toMatchObject({
      status: 422,
      body: { error: { code: 'schema_violation' } },
    });
  });
});
