import { sleep, VirtualClock } from '@floe-rl/core';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type DispatchPolicy, StagePools } from '../../../src/gateway/node/stage-pools.ts';

const never = new AbortController().signal;
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('StagePools', () => {
  it('admits no session that could not wait in READY', async () => {
    const pools = new StagePools({ init: 8, ready: 2, run: 1, postrun: 1 });
    expect(pools.admissible()).toBe(3);
    const leave = await Promise.all([pools.enterInit(never), pools.enterInit(never), pools.enterInit(never)]);
    expect(pools.admissible()).toBe(0);
    await pools.enterRun(leave[0], never);
    expect(pools.admissible()).toBe(0);
    expect(pools.metrics()).toMatchObject({ init_inflight: 2, run_inflight: 1, ready_depth: 0 });
  });

  it('admits a session only for a free RUN worker when READY has size 0', async () => {
    const pools = new StagePools({ init: 4, ready: 0, run: 1, postrun: 1 });
    expect(pools.admissible()).toBe(1);
    const release = await pools.enterRun(await pools.enterInit(never), never);
    expect(pools.admissible()).toBe(0);
    release();
    expect(pools.admissible()).toBe(1);
  });

  it('admits a session only for a free RUN worker while it may not lease ahead, and keeps what is in READY', async () => {
    const pools = new StagePools({ init: 4, ready: 2, run: 2, postrun: 1 });
    const release = await pools.enterRun(await pools.enterInit(never), never);
    await pools.enterRun(await pools.enterInit(never), never);
    const waiting = pools.enterRun(await pools.enterInit(never), never);
    const seen: number[] = [];
    pools.onChange(() => seen.push(pools.admissible()));
    pools.setLeaseAhead(false);
    pools.setLeaseAhead(false);
    expect(seen).toEqual([0]);
    release();
    const releaseNext = await waiting;
    expect(pools.admissible()).toBe(0);
    releaseNext();
    expect(pools.admissible()).toBe(1);
    pools.setLeaseAhead(true);
    expect(seen.at(-1)).toBe(3);
  });

  it('admits a whole batch even while it may not lease ahead', () => {
    const pools = new StagePools({ init: 2, ready: 2, run: 4, postrun: 1 }, 'batch');
    pools.setLeaseAhead(false);
    expect(pools.admissible()).toBe(6);
  });

  it('admits no further session while one moves from INIT to READY', async () => {
    const pools = new StagePools({ init: 1, ready: 1, run: 1, postrun: 1 });
    await pools.enterRun(await pools.enterInit(never), never);
    const leaveInit = await pools.enterInit(never);
    const seen: number[] = [];
    pools.onChange(() => seen.push(pools.admissible()));
    void pools.enterRun(leaveInit, never);
    await turn();
    expect(seen).toEqual([0]);
  });

  it('notifies listeners when a session stops waiting for a RUN worker', async () => {
    const pools = new StagePools({ init: 2, ready: 1, run: 1, postrun: 1 });
    await pools.enterRun(await pools.enterInit(never), never);
    const cancelled = new AbortController();
    const waiting = pools.enterRun(await pools.enterInit(never), cancelled.signal);
    const seen: number[] = [];
    pools.onChange(() => seen.push(pools.metrics().ready_depth));
    cancelled.abort(new Error('cancelled'));
    await expect(waiting).rejects.toThrow('cancelled');
    expect(seen).toEqual([0]);
  });

  it('notifies listeners when capacity grows', async () => {
    const pools = new StagePools({ init: 1, ready: 0, run: 1, postrun: 1 });
    let changes = 0;
    pools.onChange(() => changes++);
    const leave = await pools.enterInit(never);
    const before = changes;
    leave();
    leave();
    expect(changes).toBe(before + 1);
  });

  it('keeps READY within its size when sessions are admitted as it allows', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.record({ init: fc.integer({ min: 1, max: 6 }), ready: fc.nat(4), run: fc.integer({ min: 1, max: 4 }) }),
        fc.array(fc.nat(2), { maxLength: 80 }),
        async (sizes, steps) => {
          const pools = new StagePools({ ...sizes, postrun: 1 });
          const inInit: (() => void)[] = [];
          const running: (() => void)[] = [];
          for (const step of steps) {
            if (step === 0 && pools.admissible() > 0) inInit.push(await pools.enterInit(never));
            if (step === 1) {
              const leave = inInit.shift();
              if (leave !== undefined) {
                void pools.enterRun(leave, never).then((release) => running.push(release));
              }
            }
            if (step === 2) running.shift()?.();
            await turn();
            const metrics = pools.metrics();
            expect(metrics.ready_depth).toBeLessThanOrEqual(sizes.ready);
            expect(metrics.init_inflight).toBeLessThanOrEqual(sizes.init);
            expect(metrics.run_inflight).toBe(running.length);
          }
        },
      ),
      { numRuns: 200 },
    );
  });
});

type Durations = { readonly init: number; readonly run: number; readonly postrun: number };
type Stage = keyof Durations;
/** Times of one session in ms: when it was leased, the start and end of each stage, and when it was delivered. */
type Course = {
  readonly leased: number;
  readonly spans: Record<Stage, readonly [number, number]>;
  readonly delivered: number;
};
type Sizes = { init: number; ready: number; run: number; postrun: number };

/** Runs sessions with the given stage durations through the stage pools, as a node does. Returns the times of each session. */
async function courses(
  policy: DispatchPolicy,
  sizes: Sizes,
  queue: readonly Durations[],
  deliveryMs = 0,
): Promise<Course[]> {
  const clock = new VirtualClock();
  const pools = new StagePools(sizes, policy);
  const done: Course[] = [];
  const waiting = [...queue];
  const session = async (durations: Durations): Promise<void> => {
    const leased = clock.monotonicMs();
    const end = pools.admit();
    const spans: Partial<Record<Stage, readonly [number, number]>> = {};
    const stage = async (name: Stage): Promise<void> => {
      const from = clock.monotonicMs();
      await sleep(clock, durations[name]);
      spans[name] = [from, clock.monotonicMs()];
    };
    const leaveInit = await pools.enterInit(never);
    await stage('init');
    const leaveRun = await pools.enterRun(leaveInit, never);
    await stage('run');
    leaveRun();
    const leavePostrun = await pools.enterPostrun(never);
    await stage('postrun');
    leavePostrun();
    if (deliveryMs > 0) await sleep(clock, deliveryMs);
    done.push({ leased, spans: spans as Course['spans'], delivered: clock.monotonicMs() });
    end();
  };
  const lease = (): void => {
    for (let free = pools.admissible(); free > 0; free--) {
      const next = waiting.shift();
      if (next !== undefined) void session(next);
    }
  };
  pools.onChange(lease);
  lease();
  for (let ticks = 0; done.length < queue.length; ticks++) {
    if (ticks > 20_000) throw new Error(`${queue.length - done.length} sessions did not end`);
    for (let i = 0; i < 3; i++) await turn();
    clock.advance(1);
  }
  return done;
}

/** Returns the maximum number of sessions that were in the stage concurrently. */
function peak(all: readonly Course[], stage: Stage): number {
  const starts = all.map(({ spans }) => spans[stage][0]);
  return Math.max(
    ...starts.map((at) => all.filter(({ spans }) => spans[stage][0] <= at && at < spans[stage][1]).length),
  );
}

const same = (count: number, init: number, run: number, postrun: number): Durations[] =>
  Array.from({ length: count }, () => ({ init, run, postrun }));
const makespan = (all: readonly Course[]): number => Math.max(...all.map(({ delivered }) => delivered));

describe('dispatch policy pipeline', () => {
  it('overlaps the stages of different sessions, so that RUN is never idle', async () => {
    const all = await courses('pipeline', { init: 1, ready: 1, run: 1, postrun: 1 }, same(5, 5, 10, 5));
    expect(makespan(all)).toBe(5 + 5 * 10 + 5);
    const runs = all.map(({ spans }) => spans.run).sort((a, b) => a[0] - b[0]);
    for (let i = 1; i < runs.length; i++) expect(runs[i]?.[0]).toBe(runs[i - 1]?.[1]);
  });

  it('leases the next session while a result is being delivered', async () => {
    const all = await courses('pipeline', { init: 1, ready: 0, run: 1, postrun: 1 }, same(2, 1, 2, 1), 50);
    const [first, second] = all.map(({ leased }) => leased);
    expect(first).toBe(0);
    expect(second).toBeLessThan(10);
  });
});

describe('dispatch policy batch', () => {
  it('leases the next sessions only after the last of a batch is delivered', async () => {
    const durations = [...same(2, 1, 3, 1), { init: 1, run: 30, postrun: 1 }, ...same(3, 1, 3, 1)];
    const all = await courses('batch', { init: 3, ready: 1, run: 2, postrun: 2 }, durations, 4);
    const first = all.filter(({ leased }) => leased === 0);
    expect(first).toHaveLength(3);
    for (const { leased } of all) if (leased > 0) expect(leased).toBe(makespan(first));
  });

  it('overlaps the stages within a batch and lets sessions wait for INIT', async () => {
    const all = await courses('batch', { init: 1, ready: 2, run: 1, postrun: 1 }, same(3, 4, 4, 4));
    expect(all.map(({ leased }) => leased)).toEqual([0, 0, 0]);
    expect(makespan(all)).toBe(5 * 4);
  });
});

describe('dispatch policy bounded_batch', () => {
  it('takes one session through all stages before its worker takes another', async () => {
    const all = await courses('bounded_batch', { init: 1, ready: 5, run: 2, postrun: 1 }, same(6, 2, 5, 3), 1);
    const leased = all.map((course) => course.leased).sort((a, b) => a - b);
    expect(leased).toEqual([0, 0, 11, 11, 22, 22]);
    for (const course of all) expect(course.delivered - course.leased).toBe(2 + 5 + 3 + 1);
    expect(peak(all, 'init')).toBe(2);
    expect(peak(all, 'postrun')).toBe(2);
  });

  it('does not wait for the slowest session of other workers', async () => {
    const queue = [{ init: 1, run: 50, postrun: 1 }, ...same(4, 1, 3, 1)];
    const all = await courses('bounded_batch', { init: 1, ready: 0, run: 2, postrun: 1 }, queue);
    expect(all.map((course) => course.leased)).toEqual([0, 5, 10, 15, 0]);
  });
});

describe('every dispatch policy', () => {
  const duration = fc.integer({ min: 1, max: 9 });
  const size = fc.integer({ min: 1, max: 3 });

  it('completes every session and keeps each stage within its workers', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom<DispatchPolicy>('pipeline', 'batch', 'bounded_batch'),
        fc.record({ init: size, ready: fc.nat(2), run: size, postrun: size }),
        fc.array(fc.record({ init: duration, run: duration, postrun: duration }), { minLength: 1, maxLength: 12 }),
        async (policy, sizes, queue) => {
          const all = await courses(policy, sizes, queue);
          const workers = policy === 'bounded_batch' ? { ...sizes, init: sizes.run, postrun: sizes.run } : sizes;
          for (const stage of ['init', 'run', 'postrun'] as const) {
            expect(peak(all, stage)).toBeLessThanOrEqual(workers[stage]);
          }
          if (policy === 'pipeline') {
            for (const { leased, spans } of all) expect(spans.init[0]).toBe(leased);
          }
        },
      ),
      { numRuns: 60 },
    );
  });
});
