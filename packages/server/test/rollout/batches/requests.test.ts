import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { SqlBatches } from '../../../src/store/sql/batches.ts';
import { SqlResults } from '../../../src/store/sql/results.ts';
import { mixed, rows, rowsOf, StreamBench } from './stream-bench.ts';

let bench: StreamBench;
beforeEach(async () => {
  bench = await StreamBench.create();
});
afterEach(async () => {
  vi.restoreAllMocks();
  await bench.dispose();
});

describe('requests for batches', () => {
  it('that wait at the same time without `after` get different batches', async () => {
    await bench.createStream();
    await bench.next();
    const waiting = [bench.next({ wait: 60 }), bench.next({ wait: 60 })];
    await bench.runAll(mixed);
    const replies = await Promise.all(waiting);
    expect(replies.map(({ batch }) => batch).sort()).toEqual([1, 2]);
    expect(replies.flatMap(rowsOf).sort()).toEqual([0, 1, 2, 3]);
  });

  it('that wait at the same time with the same `after` get the same batch', async () => {
    await bench.createStream();
    const waiting = [bench.next({ wait: 60, after: 0 }), bench.next({ wait: 60, after: 0 })];
    await bench.runAll(mixed);
    expect((await Promise.all(waiting)).map(rowsOf)).toEqual([
      [0, 1],
      [0, 1],
    ]);
  });

  it('get batches that are larger than batch_size', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(12) }, max_staleness: 0 });
    for (const batch of [1, 2]) {
      expect(await bench.next({ size: 5 })).toMatchObject({ batch: null });
      await bench.runAll(mixed);
      const reply = await bench.next({ size: 5 });
      expect([reply.batch, reply.groups.length]).toEqual([batch, 5]);
    }
  });

  it('for small batches do not let the stream sample further ahead than max_staleness batches', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(40) }, max_staleness: 1 });
    await bench.runAll(mixed);
    for (let batch = 1; batch <= 5; batch++) {
      expect(await bench.next({ size: 1 })).toMatchObject({ batch });
      await bench.runAll(mixed);
      // One batch of two groups may be prepared in advance, and the trainer does not wait for a batch.
      expect((await bench.view()).progress.ready).toBe(2);
    }
  });

  it('with batch_unit: session get enough groups when each has few resolved samples', async () => {
    await bench.createStream({
      source: { kind: 'rows', rows: rows(40) },
      batch_unit: 'session',
      batch_size: 5,
      max_staleness: 0,
    });
    for (const batch of [1, 2]) {
      expect(await bench.next()).toMatchObject({ batch: null });
      await bench.runAll(mixed);
      const reply = await bench.next();
      expect([reply.batch, reply.groups.length]).toEqual([batch, 5]);
    }
  });

  it('report the end of a stream that is ended while they wait', async () => {
    await bench.createStream();
    const waiting = bench.next({ wait: 60 });
    await bench.caller.call('DELETE', '/rollout/batches/b');
    expect(await waiting).toMatchObject({ batch: null, done: true });
  });
});

describe('a request for a batch', () => {
  it('locks its stream once, and reads and changes no group alone', async () => {
    await bench.createStream({ batch_size: 3 });
    await bench.runAll(mixed);
    const alone = [
      vi.spyOn(SqlBatches.prototype, 'updateGroup'),
      vi.spyOn(SqlBatches.prototype, 'row'),
      vi.spyOn(SqlResults.prototype, 'ofTask'),
    ];
    const locked = vi.spyOn(SqlBatches.prototype, 'lockStream');
    expect(rowsOf(await bench.next({ policy_version: '1' }))).toEqual([0, 1, 2]);
    expect(locked).toHaveBeenCalledOnce();
    for (const spy of alone) expect(spy).not.toHaveBeenCalled();
  });

  it('gets the batch after the rewound ones when the stream is rewound while it waits', async () => {
    await bench.createStream({ batch_size: 1, max_staleness: 1 });
    await bench.next({ policy_version: '1' });
    await bench.runAll(mixed);
    expect(rowsOf(await bench.next({ policy_version: '1' }))).toEqual([0]);
    expect(rowsOf(await bench.next({ policy_version: '1' }))).toEqual([1]);
    const waiting = bench.next({ wait: 60 });
    const { status } = await bench.caller.call('POST', '/rollout/batches/b/rewind', { after: 0, policy_version: '1' });
    expect(status).toBe(200);
    const reply = await waiting;
    expect([reply.batch, rowsOf(reply)]).toEqual([1, [0]]);
    expect(await bench.view()).toMatchObject({ batch: 1 });
  });

  it('lists a group whose results were removed without results', async () => {
    await bench.createStream({ batch_size: 3 });
    await bench.runAll(mixed);
    const first = await bench.next();
    await bench.next();
    const { store } = await bench.bench.open();
    const sizes = async (): Promise<unknown> => {
      const reply = await bench.next({ after: 0 });
      expect(reply.groups.map((group) => group.group_id)).toEqual(first.groups.map((group) => group.group_id));
      return reply.groups.map((group) => (group.results as unknown[]).length);
    };
    const removed: unknown[] = [];
    for (let tasks = 1; tasks <= 3; tasks++) {
      await store.transaction((tables) => tables.tasks.removeEnded(Number.MAX_SAFE_INTEGER, 2));
      removed.push(await sizes());
    }
    expect(removed).toEqual([
      [0, 2, 2],
      [0, 0, 2],
      [0, 0, 0],
    ]);
  });
});

describe('a stream whose rows were all sampled', () => {
  it('is not locked any more to start groups, so that finished evaluations cost no transactions', async () => {
    await bench.createStream({ purpose: 'evaluate', source: { kind: 'rows', rows: rows(2) } });
    await bench.runAll(mixed);
    const locked = vi.spyOn(SqlBatches.prototype, 'lockStream');
    await bench.running.server.sweep();
    expect(locked).not.toHaveBeenCalled();
    locked.mockRestore();
    expect(await bench.next()).toMatchObject({ batch: 1 });
    expect(await bench.next()).toMatchObject({ batch: null, done: true });
  });
});

describe('an ended stream', () => {
  it('cannot be rewound, because no group of it starts any more', async () => {
    await bench.createStream();
    await bench.runAll(mixed);
    await bench.next({ policy_version: '1' });
    await bench.caller.call('DELETE', '/rollout/batches/b');
    const { status, body } = await bench.caller.call('POST', '/rollout/batches/b/rewind', {
      after: 0,
      policy_version: '1',
    });
    expect({ status, body }).toMatchObject({ status: 409, body: { error: { code: 'conflict' } } });
    expect((await bench.view()).progress).toMatchObject({ handed: 2 });
  });
});

describe('pushed rows', () => {
  it('that differ from the rows at their place are refused, so that two clients lose none', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(1), open: true } });
    const push = (question: string, count: number): ReturnType<typeof bench.caller.call> =>
      bench.caller.call('POST', '/rollout/batches/b/rows', {
        rows: Array.from({ length: count }, (_, index) => ({ question: `${question}${index}` })),
        after: 1,
      });
    expect(await push('x', 2)).toMatchObject({ status: 200, body: { row_count: 3 } });
    expect(await push('x', 2)).toMatchObject({ status: 200, body: { row_count: 3 } });
    expect(await push('y', 3)).toMatchObject({ status: 409, body: { error: { code: 'conflict' } } });
    expect((await push('y', 3)).body).toMatchObject({ error: { message: expect.stringContaining('row 1') } });
    expect(await bench.view()).toMatchObject({ row_count: 3 });
    // A repeated request with further rows adds the further rows.
    expect(await push('x', 3)).toMatchObject({ status: 200, body: { row_count: 4 } });
  });
});

describe('a group that is started again', () => {
  it('has all its tries for failures of the infrastructure after it was too old', async () => {
    await bench.createStream({
      source: { kind: 'rows', rows: rows(1) },
      order: { epochs: 1 },
      batch_size: 1,
      max_staleness: 0,
      task: {
        instruction: '{{row.question}}',
        num_samples: 2,
        max_attempts: 1,
        agent: { harness: 'shell', custom_shell: 'true' },
        evaluator: { strategy: 'session_completed' },
      },
    });
    for (const step of [1, 2, 3]) {
      await bench.next({ policy_version: String(step) });
      await bench.lease(2);
    }
    await bench.next({ policy_version: '4' });
    const ran = await bench.runAll(({ group }) => (group < 5 ? 'infra_error' : 1));
    expect(new Set(ran.map(({ group }) => group))).toEqual(new Set([3, 4, 5]));
  });
});
