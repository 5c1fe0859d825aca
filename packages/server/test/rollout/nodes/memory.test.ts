import { VirtualClock } from '@floe-rl/core';
import { sessionMemoryMb } from '@floe-rl/core/protocol';
import {
  type Lease,
  type NodeInfo,
  type RolloutStatus,
  runtimeSpecSchema,
  type TaskRequestInput,
} from '@floe-rl/core/schema';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../call.ts';
import { REGISTRATION, type Running, summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let running: Running;
let caller: Caller;

async function open(config: Parameters<Workbench['server']>[0] = {}): Promise<void> {
  bench = await Workbench.create(new VirtualClock());
  running = await bench.server(config);
  caller = new Caller(running.server);
}
beforeEach(() => open());
afterEach(() => bench.dispose());

const GIB = 1024;

async function register(nodeId: string, memoryMb: number | null): Promise<void> {
  await caller.call('POST', '/nodes/register', { ...REGISTRATION, node_id: nodeId, memory_mb: memoryMb });
}

/** Returns a task each of whose sessions needs `mb` MiB of memory. */
function needing(mb: number, fields: Partial<TaskRequestInput> = {}): TaskRequestInput {
  return task({ runtime: { memory_mb: mb - 16, storage_mb: 16 }, ...fields });
}

const memoryOf = (leases: readonly Lease[]): number =>
  leases.reduce((sum, lease) => sum + sessionMemoryMb(lease.task.runtime, false), 0);

const orderOf = (leases: readonly Lease[]): string[] =>
  leases.map(({ task_id, sample_index }) => `${task_id}.${sample_index}`);

describe('the memory limits of the sessions on a node', () => {
  it('never exceed the memory of the node together; the other sessions wait', async () => {
    await register('n1', 10 * GIB);
    await caller.submit(needing(3 * GIB, { num_samples: 8 }));
    const first = await caller.lease('n1', 100);
    expect(first).toHaveLength(3);
    expect(await caller.lease('n1', 100)).toEqual([]);
    const node = (await caller.call<NodeInfo>('GET', '/nodes/n1')).body;
    expect(node).toMatchObject({ memory_mb: 10 * GIB, leased_memory_mb: 9 * GIB, leased_sessions: 3 });
    const { bottleneck, counters } = (await caller.call<RolloutStatus>('GET', '/rollout/status')).body;
    expect(bottleneck).toMatchObject({ name: 'memory', why: expect.stringContaining('at least 3072 MiB') });
    expect(counters.claims_out_of_memory).toBe(2);

    await caller.deliver('n1', summaryOf(first[0] as Lease));
    expect(await caller.lease('n1', 100)).toHaveLength(1);
  });

  it('do not exceed it whatever is submitted and in whichever order sessions end', async () => {
    const tasks = fc.array(
      fc.record({
        mb: fc.integer({ min: 40, max: 900 }),
        samples: fc.integer({ min: 1, max: 4 }),
        trainer: fc.constantFrom('a', 'b'),
      }),
      { minLength: 1, maxLength: 6 },
    );
    await fc.assert(
      fc.asyncProperty(
        tasks,
        fc.constantFrom('fifo', 'longest_first'),
        fc.array(fc.nat(9)),
        async (all, order, ends) => {
          await bench.dispose();
          await open({ queue_order: order as 'fifo' });
          await register('n1', 1_000);
          for (const { mb, samples, trainer } of all)
            await caller.submit(needing(mb, { num_samples: samples, trainer }));
          const held: Lease[] = [];
          let done = 0;
          const total = all.reduce((sum, { samples }) => sum + samples, 0);
          for (let step = 0; done < total; step++) {
            held.push(...(await caller.lease('n1', 5)));
            expect(memoryOf(held)).toBeLessThanOrEqual(1_000);
            // A node without sessions always gets one, so that no session waits indefinitely.
            expect(held.length).toBeGreaterThan(0);
            const [ended] = held.splice((ends[step] ?? 0) % held.length, 1);
            await caller.deliver('n1', summaryOf(ended as Lease));
            done++;
          }
        },
      ),
      { numRuns: 15 },
    );
  });

  it('do not limit a node that states no memory', async () => {
    await register('n1', null);
    await caller.submit(needing(100 * GIB, { num_samples: 5 }));
    expect(await caller.lease('n1', 100)).toHaveLength(5);
  });
});

describe('a session that needs much memory', () => {
  it.each([['fifo'], ['longest_first']] as const)(
    'is not overtaken by smaller ones of its trainer or another one while it waits (%s)',
    async (order) => {
      await bench.dispose();
      await open({ queue_order: order });
      await register('n1', 10 * GIB);
      await caller.submit(needing(4 * GIB, { task_id: 'first', num_samples: 2 }));
      const held = await caller.lease('n1', 2);
      await caller.submit(needing(8 * GIB, { task_id: 'large' }));
      await caller.submit(needing(1 * GIB, { task_id: 'small', num_samples: 4 }));
      expect(await caller.lease('n1', 4)).toEqual([]);
      await caller.deliver('n1', summaryOf(held[0] as Lease));
      expect(await caller.lease('n1', 4)).toEqual([]);
      await caller.deliver('n1', summaryOf(held[1] as Lease));
      expect(orderOf(await caller.lease('n1', 4))).toEqual(['large.0', 'small.0', 'small.1']);
    },
  );

  it('waits for a node that is large enough, without holding up smaller ones', async () => {
    await register('small', 4 * GIB);
    await register('large', 16 * GIB);
    await caller.submit(needing(8 * GIB, { task_id: 'big' }));
    await caller.submit(needing(1 * GIB, { task_id: 'tiny' }));
    expect(orderOf(await caller.lease('small', 4))).toEqual(['tiny.0']);
    expect(orderOf(await caller.lease('large', 4))).toEqual(['big.0']);
  });

  it('is refused at submission when no node can ever run it, with both numbers', async () => {
    await register('n1', 4 * GIB);
    await register('n2', 6 * GIB);
    const refused = await caller.call('POST', '/rollout/task/submit', needing(8 * GIB));
    expect(refused).toMatchObject({
      status: 422,
      body: { error: { code: 'unsupported', details: { needed_mb: 8192, largest_mb: 6144, node_id: 'n2' } } },
    });
    expect(refused.body.error.message).toMatch(/^runtime\.memory_mb: .* needs 8192 MiB .* node, n2, has 6144 MiB/);
    expect((await caller.submit(needing(6 * GIB))).session_ids).toHaveLength(1);
  });

  it("is refused with the field of the evaluator's fresh runtime when that one needs the most", async () => {
    await register('n1', 4 * GIB);
    const runtime = { ...needing(1 * GIB).runtime, eval_overrides: { memory_mb: 8192 } };
    const evaluator = {
      strategy: 'test_on_output',
      config: { test_command: 'true', expected_output_json: { t: 'PASSED' } },
    };
    const refused = await caller.call('POST', '/rollout/task/submit', needing(1 * GIB, { runtime, evaluator }));
    expect(refused).toMatchObject({
      status: 422,
      body: { error: { code: 'unsupported', details: { path: 'runtime.eval_overrides.memory_mb', needed_mb: 8224 } } },
    });
    expect(refused.body.error.message).toMatch(
      /^runtime\.eval_overrides\.memory_mb: .*lower runtime\.eval_overrides\.memory_mb/,
    );
  });

  it('is accepted again when its submission is repeated after the only node that can run it was removed', async () => {
    const large = needing(8 * GIB, { task_id: 'large' });
    await register('n1', 16 * GIB);
    const { session_ids } = await caller.submit(large);
    await caller.call('DELETE', '/nodes/n1');
    await register('n2', 4 * GIB);
    expect(await caller.submit(large)).toMatchObject({ session_ids, duplicate: true });
  });

  it('is accepted before any node is registered, and named as the reason when no node is large enough', async () => {
    await caller.submit(needing(8 * GIB));
    await register('n1', 4 * GIB);
    expect(await caller.lease('n1', 4)).toEqual([]);
    const { bottleneck } = (await caller.call<RolloutStatus>('GET', '/rollout/status')).body;
    expect(bottleneck?.why).toBe(
      'each of the 1 queued sessions needs at least 8192 MiB of memory, and the largest node has 4096 MiB for sessions',
    );
  });
});

describe('the memory that a session needs', () => {
  const runtime = runtimeSpecSchema.parse({ memory_mb: 1000, storage_mb: 100 });

  it('is that of one sandbox, and of the files of a second one where the evaluator uses a fresh runtime', () => {
    expect([sessionMemoryMb(runtime, false), sessionMemoryMb(runtime, true)]).toEqual([1100, 1200]);
  });

  it('includes the limits of the fresh runtime where the task replaces them', () => {
    const withLimits = (memory_mb: number) => ({ ...runtime, eval_overrides: { memory_mb, storage_mb: 50 } });
    expect(sessionMemoryMb(withLimits(3000), true)).toBe(3150);
    expect(sessionMemoryMb(withLimits(500), true)).toBe(1150);
    expect(sessionMemoryMb(withLimits(3000), false)).toBe(1100);
    expect(sessionMemoryMb({ ...withLimits(3000), backend: 'docker' }, true)).toBe(3000);
  });

  it('is that of the default limits when the task has no runtime', () => {
    expect(sessionMemoryMb(null, false)).toBe(4096 + 1024);
  });

  it.each([
    ['graded', 1200],
    ['in_place', 1100],
  ])('is what the server counts for the evaluator %s', async (strategy, mb) => {
    await bench.dispose();
    bench = await Workbench.create(new VirtualClock());
    running = await bench.server({}, { usesFreshRuntime: (spec) => spec.strategy === 'graded' });
    caller = new Caller(running.server);
    await register('n1', 10 * GIB);
    await caller.submit(task({ runtime: { memory_mb: 1000, storage_mb: 100 }, evaluator: { strategy } }));
    expect(await caller.lease('n1', 1)).toHaveLength(1);
    const node = (await caller.call<NodeInfo>('GET', '/nodes/n1')).body;
    expect(node).toMatchObject({ leased_memory_mb: mb });
  });
});
