import type { RolloutStatus, SessionResult } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller, type Refusal } from '../call.ts';
import { type Running, summaryOf, task, Workbench } from '../workbench.ts';

type Page = { results: SessionResult[]; next_cursor: number };

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

async function finish(samples: number, trainer = 'default', by = caller): Promise<void> {
  await by.submit(task({ num_samples: samples, trainer }));
  for (const lease of await by.lease('n1', samples)) await by.deliver('n1', summaryOf(lease));
}

async function read(query: string, by = caller): Promise<number[]> {
  const { status, body } = await by.call<Page>('GET', `/rollout/results?${query}`);
  expect(status).toBe(200);
  return body.results.map((result) => result.cursor ?? 0);
}

async function uncollected(by = caller): Promise<Record<string, number>> {
  const { body } = await by.call<RolloutStatus>('GET', '/rollout/status');
  const counts = body.trainers.map((load): [string, number] => [load.trainer, load.uncollected_results]);
  return Object.fromEntries(counts.filter(([, count]) => count > 0));
}

describe('consumers', () => {
  it('read only the results of their trainer', async () => {
    await finish(2, 'a');
    await finish(1, 'b');
    await finish(1, 'a');
    expect(await read('trainer=a')).toEqual([1, 2, 4]);
    expect(await read('trainer=b')).toEqual([3]);
    expect(await read('trainer=nobody')).toEqual([]);
    expect(await read('')).toEqual([1, 2, 3, 4]);
  });

  it('continue at their cursor, and acknowledge only what they have read past', async () => {
    await finish(5);
    expect(await read('consumer=c&limit=2')).toEqual([1, 2]);
    // The consumer has not acknowledged these results, so it gets them a second time.
    expect(await read('consumer=c&limit=2')).toEqual([1, 2]);
    expect(await read('consumer=c&limit=2&after=2')).toEqual([3, 4]);
    expect(await read('consumer=c')).toEqual([3, 4, 5]);
    expect(await read('consumer=other&limit=1')).toEqual([1]);
    // A consumer may read acknowledged results again with an explicit cursor. This does not move its stored cursor.
    expect(await read('consumer=c&after=1&limit=1')).toEqual([2]);
    expect(await read('consumer=c&limit=1')).toEqual([3]);
  });

  it('keep their cursor over restarts and on every server of the store', async () => {
    const { store, blobs } = await bench.open();
    const first = new Caller((await bench.server({}, { store, blobs })).server);
    await first.register('n1');
    await finish(3, 'default', first);
    await read('consumer=c&after=2', first);
    const second = new Caller((await bench.server({}, { store, blobs })).server);
    expect(await read('consumer=c', second)).toEqual([3]);
    const { store: reopened, blobs: same } = await bench.open();
    const third = new Caller((await bench.server({}, { store: reopened, blobs: same })).server);
    expect(await read('consumer=c', third)).toEqual([3]);
  });

  it('keep the trainer with which they began', async () => {
    await finish(1, 'a');
    await finish(1, 'b');
    expect(await read('consumer=c&trainer=b')).toEqual([2]);
    expect(await read('consumer=c')).toEqual([2]);
    const other = await caller.call('GET', '/rollout/results?consumer=c&trainer=a');
    expect(other).toMatchObject({ status: 409, body: { error: { code: 'conflict', details: { trainer: 'b' } } } });
  });

  it('are not moved by a cursor that was never assigned, which is refused', async () => {
    await finish(2);
    for (const query of ['after=3', 'consumer=c&after=99']) {
      const reply = await caller.call<Refusal>('GET', `/rollout/results?${query}`);
      expect(reply.status).toBe(422);
      expect(reply.body.error.details.issues).toMatchObject([{ path: 'after' }]);
    }
    expect(await read('consumer=c')).toEqual([1, 2]);
    expect(await uncollected()).toEqual({ default: 2 });
  });

  it('must have a valid name and trainer', async () => {
    for (const query of ['consumer=..', 'consumer=', 'trainer=a%2fb', 'consumer=a&consumer=b', 'peek=maybe']) {
      expect((await caller.call('GET', `/rollout/results?${query}`)).status, query).toBe(422);
    }
  });

  describe('a result counts as collected', () => {
    it('when a reader of its trainer has read past it', async () => {
      await finish(3, 'a');
      await finish(2, 'b');
      await read('trainer=a&limit=2');
      expect(await uncollected()).toEqual({ a: 3, b: 2 });
      await read('trainer=a&after=2');
      expect(await uncollected()).toEqual({ a: 1, b: 2 });
      await read('consumer=all&after=5');
      expect(await uncollected()).toEqual({});
    });

    it('never when it was read with peek', async () => {
      await finish(2);
      await read('peek=true&after=2');
      await read('consumer=c&peek=true&after=2');
      expect(await uncollected()).toEqual({ default: 2 });
      expect(await read('consumer=c')).toEqual([1, 2]);
    });

    it('when its task has ended and was fetched completely with its token data', async () => {
      const { task_id } = await caller.submit(task({ num_samples: 2 }));
      const [one, other] = await caller.lease('n1', 2);
      if (one === undefined || other === undefined) throw new Error('two sessions were queued');
      await caller.deliver('n1', summaryOf(one));
      await caller.call('GET', `/rollout/task/${task_id}?results=full`);
      expect(await uncollected()).toEqual({ default: 1 });
      await caller.deliver('n1', summaryOf(other));
      await caller.call('GET', `/rollout/task/${task_id}`);
      expect(await uncollected()).toEqual({ default: 2 });
      await caller.call('GET', `/rollout/task/${task_id}?results=full`);
      expect(await uncollected()).toEqual({});
    });
  });

  it('never move their cursor back and never miss a result, in whatever order results are acknowledged', async () => {
    const count = 12;
    await finish(count);
    let run = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 0, max: count }), { maxLength: 8 }), async (acknowledged) => {
        const name = `c${run++}`;
        let furthest = 0;
        for (const after of acknowledged) {
          await read(`consumer=${name}&after=${after}&limit=1`);
          furthest = Math.max(furthest, after);
        }
        const rest = Array.from({ length: count - furthest }, (_, index) => furthest + index + 1);
        expect(await read(`consumer=${name}`)).toEqual(rest);
      }),
      { numRuns: 30 },
    );
  });

  it('keep the greatest cursor of several concurrent acknowledgements', async () => {
    await finish(12);
    await Promise.all([3, 7, 9, 12, 1, 10].map((after) => read(`consumer=c&after=${after}`)));
    expect(await read('consumer=c')).toEqual([]);
  });
});
