import type { BatchReply, RolloutStatus } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { mixed, originOf, resultsOf, rows, rowsOf, StreamBench, streamOf } from './stream-bench.ts';

let bench: StreamBench;
beforeEach(async () => {
  bench = await StreamBench.create();
});
afterEach(() => bench.dispose());

describe('a batch stream', () => {
  it('hands out informative groups in the order in which they were started', async () => {
    await bench.createStream();
    await bench.runAll(({ row, sample }) => (row === 1 ? 0 : mixed({ row, sample, group: 0 })));
    const batch = await bench.next({ policy_version: 'v1' });
    expect(batch).toMatchObject({ batch: 1, done: false, policy_step: 1 });
    expect(rowsOf(batch)).toEqual([0, 2]);
    expect(batch.groups[0]?.row).toEqual({ question: 'q0' });
    expect(resultsOf(batch).map((result) => [result.reward, result.trajectory !== null])).toEqual([
      [1, true],
      [0, true],
      [1, true],
      [0, true],
    ]);
    expect(batch.progress.rejected).toEqual({ all_wrong: 1 });
  });

  it('fills the template with the fields of the row and records where the task belongs', async () => {
    await bench.createStream();
    const [lease] = await bench.lease();
    expect(lease?.task).toMatchObject({ instruction: 'Answer q0', policy_version: null });
    expect(lease?.task.metadata.batch).toEqual({ batch_id: 'b', group: 0, row_index: 0, epoch: 0 });
  });

  it('returns the same batch when its number is requested again, also after a restart of the server', async () => {
    await bench.createStream();
    await bench.runAll(mixed);
    const first = await bench.next();
    expect(await bench.next({ after: 0 })).toMatchObject({ batch: 1, groups: first.groups });
    bench = await bench.restarted();
    expect(rowsOf(await bench.next({ after: 0 }))).toEqual(rowsOf(first));
    await bench.runAll(mixed);
    expect(rowsOf(await bench.next({ after: 1 }))).toEqual([2, 3]);
  });

  it('gives two requests without `after`, one after the other, different batches', async () => {
    await bench.createStream();
    await bench.next();
    await bench.runAll(mixed);
    const replies = [await bench.next(), await bench.next()];
    expect(replies.map(rowsOf)).toEqual([
      [0, 1],
      [2, 3],
    ]);
  });

  it('starts at most max_staleness batches of groups ahead of the requested one', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(20) }, max_staleness: 1 });
    expect(await bench.runAll(mixed)).toHaveLength(4);
    expect(await bench.next()).toMatchObject({ batch: 1 });
    expect(await bench.runAll(mixed)).toHaveLength(4);
  });

  it('starts no group before the first request when max_staleness is 0', async () => {
    await bench.createStream({ max_staleness: 0 });
    expect(await bench.runAll(mixed)).toEqual([]);
    expect(await bench.next({ policy_version: '1' })).toMatchObject({ batch: null, done: false });
    expect(await bench.runAll(mixed)).toHaveLength(4);
    expect(await bench.next({ policy_version: '1' })).toMatchObject({ batch: 1 });
  });

  it('starts the groups again that are too old for the policy', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(20) }, batch_size: 1, max_staleness: 2 });
    await bench.next({ policy_version: '1' });
    await bench.runAll(mixed);
    expect(rowsOf(await bench.next({ policy_version: '1' }))).toEqual([0]);
    expect((await bench.next({ policy_version: '3' })).groups[0]).toMatchObject({ row_index: 1, staleness: 2 });
    expect(await bench.next({ policy_version: '4' })).toMatchObject({ batch: null, progress: { expired: 1 } });
    const ran = await bench.runAll(mixed);
    expect(ran[0]?.row).toBe(2);
    expect((await bench.next({ policy_version: '4' })).groups[0]).toMatchObject({ row_index: 2, staleness: 0 });
  });

  it('cancels running groups that are too old, and runs their rows once more', async () => {
    await bench.createStream({ batch_size: 1, max_staleness: 0, oversampling: 2 });
    await bench.next({ policy_version: '1' });
    const [first, second, third] = await bench.lease(4);
    if (first === undefined || second === undefined || third === undefined) throw new Error('nothing was leased');
    await bench.end(first, 1);
    await bench.end(second, 0);
    expect(await bench.next({ policy_version: '1' })).toMatchObject({ batch: 1 });
    expect(await bench.next({ policy_version: '2' })).toMatchObject({ batch: null, progress: { restarted: 1 } });
    expect((await bench.caller.session(third.session_id)).status).toBe('CANCELLED');
    expect((await bench.runAll(mixed)).map(({ row }) => row)).toEqual([1, 1, 2, 2]);
  });

  it('keeps unfinished groups for a later batch, or restarts them with unfinished: restart', async () => {
    for (const unfinished of ['keep', 'restart'] as const) {
      await bench.createStream({ batch_id: unfinished, batch_size: 1, max_staleness: 2, unfinished });
      const leases = await bench.lease(4);
      expect(leases.map((lease) => originOf(lease).row)).toEqual([0, 0, 1, 1]);
      for (const lease of leases.slice(0, 2)) await bench.end(lease, originOf(lease).sample);
      expect(rowsOf(await bench.next({}, unfinished))).toEqual([0]);
      const running = await bench.caller.session(leases[2]?.session_id ?? '');
      expect(running.status).toBe(unfinished === 'keep' ? 'LEASED' : 'CANCELLED');
      await bench.caller.call('DELETE', `/rollout/batches/${unfinished}`);
    }
  });

  it('refuses an older policy version than the trainer gave before, and one without a step', async () => {
    await bench.createStream();
    await bench.next({ policy_version: 'v3' });
    const older = await bench.ask({ policy_version: 'v2' });
    expect(older).toMatchObject({ status: 409, body: { error: { code: 'conflict' } } });
    expect(older.body.error.message).toContain('rewind');
    const nameless = await bench.ask({ policy_version: 'main' });
    expect(nameless.body.error).toMatchObject({
      code: 'schema_violation',
      details: { issues: [{ path: 'policy_version' }] },
    });
    expect(await bench.next({ policy_version: 'v3' })).toMatchObject({ batch: null });
  });

  it('refuses a batch number that was never handed out', async () => {
    await bench.createStream();
    expect((await bench.ask({ after: 1 })).body.error).toMatchObject({ code: 'schema_violation' });
  });

  it('ends with a smaller batch and then reports that it is done', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(3) }, order: { epochs: 1 } });
    await bench.runAll(mixed);
    expect(rowsOf(await bench.next())).toEqual([0, 1]);
    await bench.runAll(mixed);
    const last = await bench.next();
    expect([last.batch, rowsOf(last)]).toEqual([2, [2]]);
    expect(await bench.next()).toMatchObject({ batch: null, done: true, groups: [] });
    expect(await bench.view()).toMatchObject({ done: true, batch: 2 });
  });

  it('visits every row once in each epoch', async () => {
    await bench.createStream({
      source: { kind: 'rows', rows: rows(5) },
      order: { kind: 'shuffled', seed: 3 },
      max_staleness: 20,
    });
    const visited = (await bench.runAll(mixed, 20)).filter(({ sample }) => sample === 0).map(({ row }) => row);
    const sorted = (list: number[]): number[] => [...list].sort();
    expect(sorted(visited.slice(0, 5))).toEqual([0, 1, 2, 3, 4]);
    expect(sorted(visited.slice(5, 10))).toEqual([0, 1, 2, 3, 4]);
    expect(visited.slice(0, 5)).not.toEqual(visited.slice(5, 10));
  });

  it('retires a row after consecutive rejected groups, and is done when no row is left', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(2) }, retire_after: 2 });
    const ran = await bench.runAll(() => 0);
    for (const row of [0, 1]) expect(ran.filter((origin) => origin.row === row).length).toBeGreaterThanOrEqual(4);
    expect(await bench.next()).toMatchObject({ done: true, batch: null, progress: { ready: 0, retired_rows: 2 } });
  });

  it('warns after many groups that were all rejected, until one is accepted, and samples further rows meanwhile', async () => {
    await bench.createStream({ max_staleness: 2 });
    await bench.runAll(() => 1, 126);
    expect((await bench.next()).progress.warning).toBeNull();
    const ran = await bench.runAll(() => 1, 4);
    expect(ran.map(({ group }) => group)).toEqual([63, 63, 64, 64]);
    const { progress } = await bench.next();
    expect(progress.warning).toContain('the newest 64 groups that ended were all rejected (all_right 64)');
    expect((await bench.view()).progress.warning).toBe(progress.warning);
    const status = await bench.caller.call<RolloutStatus>('GET', '/rollout/status');
    expect(status.body.batch_streams[0]?.warning).toBe(progress.warning);
    await bench.runAll(mixed, 2);
    expect(await bench.view()).toMatchObject({ progress: { ready: 1, rejected: { all_right: 65 }, warning: null } });
  });

  it('counts its groups without a record for each change that it ever had', async () => {
    await bench.createStream({ max_staleness: 2 });
    await bench.runAll(() => 1, 400);
    expect((await bench.view()).progress.rejected).toEqual({ all_right: 200 });
    const { store } = await bench.bench.open();
    // At most 64 groups have changed since the totals were updated last, with three changes each.
    expect(await store.transaction(({ batches }) => batches.foldChanges('b'))).toBeLessThan(200);
    expect((await bench.view()).progress.rejected).toEqual({ all_right: 200 });
  });

  it('replaces a group that failed because of the infrastructure, and counts its row once', async () => {
    await bench.createStream({
      source: { kind: 'rows', rows: rows(1) },
      order: { epochs: 1 },
      task: { ...streamOf({}).task, max_attempts: 1 },
    });
    const ran = await bench.runAll(({ group, sample }) => (group < 3 ? 'infra_error' : sample));
    expect(new Set(ran.map(({ row }) => row))).toEqual(new Set([0]));
    expect(ran).toHaveLength(6);
    expect((await bench.view()).progress).toMatchObject({ ready: 0, running: 0, rejected: { few_usable: 3 } });
  });

  it('counts resolved samples instead of groups with batch_unit: session', async () => {
    await bench.createStream({ batch_unit: 'session', batch_size: 3 });
    expect(await bench.next()).toMatchObject({ batch: null });
    await bench.runAll(mixed);
    expect(rowsOf(await bench.next())).toEqual([0, 1, 2]);
  });
});

describe('rewinding a batch stream', () => {
  it('hands the groups of later batches out again, and restarts those of a newer policy', async () => {
    await bench.createStream({ batch_size: 1, max_staleness: 1 });
    await bench.next({ policy_version: '1' });
    await bench.runAll(mixed);
    const first = await bench.next({ policy_version: '1' });
    const second = await bench.next({ policy_version: '2' });
    await bench.runAll(mixed);
    const third = await bench.next({ policy_version: '3' });
    expect([first, second, third].map(rowsOf)).toEqual([[0], [1], [2]]);
    const { status } = await bench.caller.call('POST', '/rollout/batches/b/rewind', { after: 1, policy_version: '1' });
    expect(status).toBe(200);
    const again = await bench.next({ policy_version: '1' });
    expect([again.batch, rowsOf(again)]).toEqual([2, [1]]);
    const ran = await bench.runAll(mixed);
    expect(ran[0]?.row).toBe(2);
    expect(rowsOf(await bench.next({ policy_version: '2' }))).toEqual([2]);
  });
});

describe('the rows of a batch stream', () => {
  it('are pushed in parts, and a repeated part is not added twice', async () => {
    await bench.createStream({ source: { kind: 'rows', rows: rows(1), open: true }, order: { epochs: 1 } });
    await bench.runAll(mixed);
    const push = (body: object): Promise<unknown> =>
      bench.caller.call('POST', '/rollout/batches/b/rows', body).then(({ status, body: reply }) => ({ status, reply }));
    const more = { rows: [{ question: 'x' }, { wrong: 1 }], after: 1, last: true };
    const answer = { status: 200, reply: { row_count: 3, invalid: [{ row_index: 2 }] } };
    expect(await push(more)).toMatchObject(answer);
    expect(await push(more)).toMatchObject({ status: 200, reply: { row_count: 3, invalid: [] } });
    expect(await push({ rows: [{ question: 'y' }] })).toMatchObject({ status: 409 });
    expect(await push({ rows: [], after: 9 })).toMatchObject({ status: 409 });
    await bench.runAll(mixed);
    expect(rowsOf(await bench.next())).toEqual([0, 1]);
    expect((await bench.view()).problems).toMatchObject([
      { row_index: 2, message: expect.stringContaining('row.question') },
    ]);
  });

  it('that do not fit the template are reported, and the others are sampled', async () => {
    const view = await bench.createStream({ source: { kind: 'rows', rows: [{ q: 1 }, ...rows(2)] } });
    expect(view).toMatchObject({ progress: { invalid_rows: 1 }, problems: [{ row_index: 0 }] });
    await bench.runAll(mixed);
    expect(rowsOf(await bench.next())).toEqual([1, 2]);
  });

  it('are numbers without end for an endless source', async () => {
    await bench.createStream({
      source: { kind: 'endless' },
      task: { ...streamOf({}).task, instruction: 'Episode {{row.index}}' },
    });
    const leases = await bench.lease(4);
    expect(leases.map(({ task }) => task.instruction)).toEqual(['Episode 0', 'Episode 0', 'Episode 1', 'Episode 1']);
  });

  it('without end are refused with the field when the template names another one than their index', async () => {
    const { status, body } = await bench.refusal({ source: { kind: 'endless' } });
    expect([status, body.error.code]).toEqual([422, 'schema_violation']);
    expect(body.error.message).toContain('row.question');
    expect(body.error.details).toMatchObject({ issues: [{ path: 'task' }] });
  });

  it('without end are tried one at a time while each is refused, and sampled once they are not', async () => {
    await bench.caller.register('n1', { memory_mb: 100 });
    const task = { ...streamOf({}).task, instruction: 'Episode {{row.index}}', runtime: { memory_mb: 4096 } };
    await bench.createStream({ source: { kind: 'endless' }, batch_size: 32, task });
    expect(await bench.lease(2)).toEqual([]);
    const { source_error: problem, progress } = await bench.view();
    expect([problem, progress.running]).toEqual([expect.stringContaining('runtime.memory_mb'), 0]);
    await bench.caller.register('n1', { memory_mb: 8192 });
    expect(await bench.lease(1)).toHaveLength(1);
    expect((await bench.view()).source_error).toBeNull();
  });
});

describe('an evaluation', () => {
  it('keeps every group, in the order of the rows, with fixed seeds and the highest priority', async () => {
    await bench.createStream({ purpose: 'evaluate', source: { kind: 'rows', rows: rows(3) } });
    const leases = await bench.lease(6);
    expect(leases.map(({ task }) => [task.dispatch_priority, task.sampling.seed])).toEqual(
      [0, 0, 1, 1, 2, 2].map((row) => [100, row * 100_000]),
    );
    for (const lease of leases) await bench.end(lease, 0);
    await bench.running.server.sweep();
    expect(rowsOf(await bench.next())).toEqual([0, 1]);
    expect(rowsOf(await bench.next())).toEqual([2]);
    expect(await bench.next()).toMatchObject({ done: true });
  });
});

describe('the records of a batch', () => {
  it("are in the trainer's format", async () => {
    await bench.createStream();
    await bench.runAll(mixed);
    const reply: BatchReply = await bench.next({ format: 'trl_async', advantages: 'centered' });
    expect(reply.groups[0]).not.toHaveProperty('results');
    expect(reply.records).toHaveLength(4);
    expect(reply.records?.[0]).toMatchObject({ input_ids: [1, 2, 3], completion_mask: [0, 1, 1], advantage: 0.5 });
  });

  it('have an advantage for each reply and without constrained tokens when the request says so', async () => {
    await bench.createStream();
    const trace = {
      metadata: { step_rewards: [0.25, 1], step_ends: [1, 2] },
      constrained_spans: [{ constraint: 'tool_choice', start: 0, end: 1 }],
    };
    for (const lease of await bench.lease(4)) await bench.end(lease, mixed(originOf(lease)), trace);
    const request = { after: 0, format: 'floe', advantages: 'centered' };
    const { records: plain } = await bench.next(request);
    expect(plain?.[0]).toMatchObject({ loss_mask: [1, 1], advantages: [0.5, 0.5] });
    const { records } = await bench.next({ ...request, per_turn: 'true', constrained: 'mask' });
    expect(records?.[0]).toMatchObject({ loss_mask: [0, 1], advantages: [0, 0.375] });
  });

  it.each([
    [{ format: 'floe', per_turn: 'maybe' }, 'per_turn'],
    [{ format: 'floe', per_session: 'maybe' }, 'per_session'],
    [{ format: 'floe', constrained: 'drop' }, 'constrained'],
    [{ per_turn: 'true' }, 'per_turn'],
    [{ per_session: 'true' }, 'per_session'],
    [{ constrained: 'mask' }, 'constrained'],
    [{ advantages: 'grpo' }, 'advantages'],
  ])('are refused for the query %j, and the error names %s', async (query, path) => {
    await bench.createStream();
    const { status, body } = await bench.ask(query);
    expect([status, body.error.code]).toEqual([422, 'schema_violation']);
    expect(body.error.details.issues).toMatchObject([{ path }]);
  });

  it('are refused with the field when the options are not JSON', async () => {
    await bench.createStream();
    const { status, body } = await bench.ask({ format: 'roll', options: '[' });
    expect([status, body.error.code]).toEqual([422, 'schema_violation']);
    expect(body.error.details).toMatchObject({ issues: [{ path: 'options' }] });
  });

  it('are refused with the reason when the format cannot carry them, and the batch stays available', async () => {
    await bench.createStream();
    await bench.runAll(mixed);
    const refused = await bench.ask({ format: 'roll', options: '{"sequence_length": 2}' });
    expect(refused.status).toBe(422);
    expect(refused.body.error.message).toContain('pad_token_id');
    expect(await bench.next({ after: 0 })).toMatchObject({ batch: 1 });
  });
});

describe('a stream that cannot be created', () => {
  it.each([
    [{ source: { kind: 'rows', rows: [] } }, 'source.rows'],
    [{ source: { kind: 'rows', rows: [{ x: 1 }] } }, 'task'],
    [{ source: { kind: 'file', path: 'x.jsonl' } }, 'source.path'],
    [{ source: { kind: 'generator', url: 'http://10.0.0.1/rows' } }, 'source.url'],
    [{ source: { kind: 'endless' }, order: { kind: 'shuffled' } }, 'order.kind'],
    [{ task: { ...streamOf({}).task, task_id: 'x' } }, 'task.task_id'],
    [{ task: { ...streamOf({}).task, evaluator: null }, accept: { zero_variance: 'drop' } }, 'accept.zero_variance'],
    [{ accept: { filter: 'missing' } }, 'accept.filter'],
    [{ task: { ...streamOf({}).task, trainer: '{{row.question}}' } }, 'task.trainer'],
    [{ accept: { min_usable: 3 } }, 'accept.min_usable'],
    [{ accept: { min_resolved: 3 } }, 'accept.min_resolved'],
    [{ task: { ...streamOf({}).task, num_samples: 1 }, accept: { zero_variance: 'drop' } }, 'accept.zero_variance'],
    [{ order: { kind: 'adaptive' }, accept: { resolved_reward: 0 } }, 'order.kind'],
    [{ batch_size: 0 }, 'batch_size'],
  ])('%j names the field %s', async (fields, path) => {
    const { status, body } = await bench.refusal(fields);
    expect([status, body.error.code]).toEqual([422, 'schema_violation']);
    expect((body.error.details.issues as { path: string }[])[0]?.path).toBe(path);
    expect((await bench.caller.call('GET', '/rollout/batches/b')).status).toBe(404);
  });

  it('with a known id and another body is a conflict, and with the same body is the known one', async () => {
    await bench.createStream();
    expect(await bench.createStream()).toMatchObject({ batch_id: 'b', duplicate: true });
    expect(await bench.refusal({ batch_size: 3 })).toMatchObject({ status: 409 });
  });
});

describe('an ended stream', () => {
  it('cancels its groups and has no further batch', async () => {
    await bench.createStream();
    const [lease] = await bench.lease();
    const { body } = await bench.caller.call('DELETE', '/rollout/batches/b');
    expect(body).toMatchObject({ status: 'ended', done: true });
    expect((await bench.caller.session(lease?.session_id ?? '')).status).toBe('CANCELLED');
    expect(await bench.next()).toMatchObject({ batch: null, done: true });
    expect(await bench.lease()).toEqual([]);
  });
});

describe('a batch filter of the operator', () => {
  it('rejects groups, and one that throws rejects its group without stopping the stream', async () => {
    const other = await StreamBench.create(
      {},
      {
        batchFilters: new Map([
          [
            'odd',
            ({ row_index }) => {
              if (row_index === 0) throw new Error('boom');
              return row_index % 2 === 1;
            },
          ],
        ]),
      },
    );
    await other.createStream({ accept: { filter: 'odd' } });
    await other.runAll(mixed);
    const batch = await other.next();
    expect(rowsOf(batch)).toEqual([1, 3]);
    expect(batch.progress.rejected).toMatchObject({ filter: 1, filter_failed: 1 });
    await other.dispose();
  });
});
