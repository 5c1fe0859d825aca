import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { sleep } from '../../../src/core/clock.ts';
import { VirtualClock } from '../../../src/core/virtual-clock.ts';
import type { DispatchPolicy } from '../../../src/gateway/node/dispatch-policy.ts';
import { StagePools } from '../../../src/gateway/node/stage-pools.ts';

const never = new AbortController().signal;
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

type Durations = { readonly init: number; readonly run: number; readonly postrun: number };
type Stage = keyof Durations;
/** When a session was taken on, was in each stage, and was over. */
type Course = {
  readonly taken: number;
  readonly spans: Record<Stage, readonly [number, number]>;
  readonly over: number;
};
type Sizes = { init: number; ready: number; run: number; postrun: number };

/** Takes sessions through the pools as a node does, with stages that take as long as they are told to. */
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
    const taken = clock.monotonicMs();
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
    done.push({ taken, spans: spans as Course['spans'], over: clock.monotonicMs() });
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

/** The most sessions in a stage at one time. */
function peak(all: readonly Course[], stage: Stage): number {
  const starts = all.map(({ spans }) => spans[stage][0]);
  return Math.max(
    ...starts.map((at) => all.filter(({ spans }) => spans[stage][0] <= at && at < spans[stage][1]).length),
  );
}

const same = (count: number, init: number, run: number, postrun: number): Durations[] =>
  Array.from({ length: count }, () => ({ init, run, postrun }));
const makespan = (all: readonly Course[]): number => Math.max(...all.map(({ over }) => over));

describe('pipeline', () => {
  it('overlaps the stages of different sessions, so that RUN never stands idle', async () => {
    const all = await courses('pipeline', { init: 1, ready: 1, run: 1, postrun: 1 }, same(5, 5, 10, 5));
    expect(makespan(all)).toBe(5 + 5 * 10 + 5);
    const runs = all.map(({ spans }) => spans.run).sort((a, b) => a[0] - b[0]);
    for (let i = 1; i < runs.length; i++) expect(runs[i]?.[0]).toBe(runs[i - 1]?.[1]);
  });

  it('takes on the next while a result is still being delivered', async () => {
    const all = await courses('pipeline', { init: 1, ready: 0, run: 1, postrun: 1 }, same(2, 1, 2, 1), 50);
    const [first, second] = all.map(({ taken }) => taken);
    expect(first).toBe(0);
    expect(second).toBeLessThan(10);
  });
});

describe('batch', () => {
  it('takes the next sessions only when the last of a batch is over, delivery included', async () => {
    const durations = [...same(2, 1, 3, 1), { init: 1, run: 30, postrun: 1 }, ...same(3, 1, 3, 1)];
    const all = await courses('batch', { init: 3, ready: 1, run: 2, postrun: 2 }, durations, 4);
    const first = all.filter(({ taken }) => taken === 0);
    expect(first).toHaveLength(3);
    for (const { taken } of all) if (taken > 0) expect(taken).toBe(makespan(first));
  });

  it('overlaps stages within a batch, with waiting for INIT', async () => {
    const all = await courses('batch', { init: 1, ready: 2, run: 1, postrun: 1 }, same(3, 4, 4, 4));
    expect(all.map(({ taken }) => taken)).toEqual([0, 0, 0]);
    expect(makespan(all)).toBe(5 * 4);
  });
});

describe('bounded_batch', () => {
  it('lets each worker carry one session through all stages before it takes another', async () => {
    const all = await courses('bounded_batch', { init: 1, ready: 5, run: 2, postrun: 1 }, same(6, 2, 5, 3), 1);
    const taken = all.map((course) => course.taken).sort((a, b) => a - b);
    expect(taken).toEqual([0, 0, 11, 11, 22, 22]);
    for (const course of all) expect(course.over - course.taken).toBe(2 + 5 + 3 + 1);
    expect(peak(all, 'init')).toBe(2);
    expect(peak(all, 'postrun')).toBe(2);
  });

  it('does not wait for the slowest of the others', async () => {
    const queue = [{ init: 1, run: 50, postrun: 1 }, ...same(4, 1, 3, 1)];
    const all = await courses('bounded_batch', { init: 1, ready: 0, run: 2, postrun: 1 }, queue);
    expect(all.map((course) => course.taken)).toEqual([0, 5, 10, 15, 0]);
  });
});

describe('every policy', () => {
  const duration = fc.integer({ min: 1, max: 9 });
  const size = fc.integer({ min: 1, max: 3 });

  it('ends every session and keeps each stage within its workers', async () => {
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
            for (const { taken, spans } of all) expect(spans.init[0]).toBe(taken);
          }
        },
      ),
      { numRuns: 60 },
    );
  });
});
