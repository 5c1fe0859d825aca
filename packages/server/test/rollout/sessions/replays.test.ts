import type { RolloutStatus, SessionResult, SubmitReply, TaskStatus } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../../test/effort.ts';
import { MemoryStore } from '../../../../../verify/control-plane/memory-store/store.ts';
import { Caller } from '../call.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { summaryOf, task, Workbench } from '../workbench.ts';

/** The calls that one run makes, in a random order. A step with `again` repeats an earlier call, as a network or a client may do. */
const STEPS = [
  'submit',
  'submit again',
  'deliver',
  'deliver again',
  'cancel',
  'cancel again',
  'ack',
  'ack again',
] as const;

describe('the server', () => {
  it('changes nothing that was settled when calls are repeated in any order', async () => {
    const bench = await Workbench.create();
    const server = await bench.server({}, { store: new MemoryStore(), blobs: new MemoryBlobs() });
    const caller = new Caller(server.server);
    await caller.register('n1');
    let run = 0;
    await fc.assert(
      fc.asyncProperty(fc.shuffledSubarray([...STEPS, ...STEPS], { minLength: 4 }), async (steps) => {
        const name = `t${run++}`;
        const body = task({ task_id: name, idempotency_key: name, num_samples: 2 });
        const { session_ids } = await caller.submit(body);
        const leases = await caller.lease('n1', 2);
        expect(leases).toHaveLength(2);
        const settled = new Map<string, string>();
        for (const step of steps) {
          if (step.startsWith('submit')) {
            const again = await caller.call<SubmitReply>('POST', '/rollout/task/submit', body);
            expect(again).toMatchObject({ status: 200, body: { duplicate: true, session_ids } });
          } else if (step.startsWith('deliver')) {
            for (const lease of leases) {
              const { status } = await caller.deliver('n1', summaryOf(lease));
              expect([200, 409]).toContain(status);
            }
          } else if (step.startsWith('cancel')) {
            expect((await caller.call('DELETE', `/rollout/task/${name}`)).status).toBe(200);
          } else {
            expect((await caller.call('GET', `/rollout/results?consumer=${name}&after=0`)).status).toBe(200);
          }
          const { body: state } = await caller.call<TaskStatus>('GET', `/rollout/task/${name}`);
          for (const result of state.results) {
            expect(settled.get(result.session_id) ?? result.outcome).toBe(result.outcome);
            settled.set(result.session_id, result.outcome);
          }
        }
        await caller.call('DELETE', `/rollout/task/${name}`);
        const page = await caller.call<{ results: SessionResult[] }>('GET', '/rollout/results?peek=true&limit=1000');
        const own = page.body.results.filter((result) => result.task_id === name).map((result) => result.session_id);
        expect(own.sort()).toEqual([...session_ids].sort());
      }),
      { numRuns: runs(40), endOnFailure: true },
    );
    const { body } = await caller.call<RolloutStatus>('GET', '/rollout/status');
    expect(body.sessions.LEASED + body.sessions.QUEUED).toBe(0);
    await bench.dispose();
  });

  it('moves no reader back when an acknowledgement is late or repeated', async () => {
    const bench = await Workbench.create();
    const caller = new Caller((await bench.server()).server);
    await caller.register('n1');
    await caller.submit(task({ num_samples: 4 }));
    for (const lease of await caller.lease('n1', 4)) await caller.deliver('n1', summaryOf(lease));
    for (const after of [3, 1, 3, 0, 2]) await caller.call('GET', `/rollout/results?consumer=c&after=${after}`);
    const { body } = await caller.call<{ results: SessionResult[] }>('GET', '/rollout/results?consumer=c');
    expect(body.results.map((result) => result.cursor)).toEqual([4]);
    await bench.dispose();
  });
});
