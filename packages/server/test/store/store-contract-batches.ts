import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { BatchDataRow, BatchGroupRow, BatchGroupState, BatchStreamRow, Store } from '../../src/store/index.ts';
import { AT, addSessions, taskRow } from './store-rows.ts';

function streamRow(batchId: string, fields: Partial<BatchStreamRow> = {}): BatchStreamRow {
  return {
    batch_id: batchId,
    digest: 'd',
    request: '{}',
    trainer: 'default',
    status: 'running',
    last_batch: 0,
    requested_batch: 0,
    acknowledged: 0,
    policy_version: null,
    policy_step: null,
    requested_size: 0,
    row_count: 0,
    rows_complete: 0,
    group_count: 0,
    epoch: 0,
    position: 0,
    source_error: null,
    source_retry_ms: 0,
    ended_ms: null,
    created_at: AT,
    ...fields,
  };
}

function dataRow(index: number, fields: Partial<BatchDataRow> = {}): BatchDataRow {
  return {
    batch_id: 'b',
    row_index: index,
    fields: `{"n":${index}}`,
    problem: null,
    last_epoch: null,
    mean_reward: null,
    last_result: null,
    rejections: 0,
    retired: 0,
    ...fields,
  };
}

function groupRow(groupNo: number, fields: Partial<BatchGroupRow> = {}): BatchGroupRow {
  return {
    batch_id: 'b',
    group_no: groupNo,
    task_id: `t${groupNo}`,
    row_index: groupNo,
    epoch: 0,
    state: 'running',
    reason: null,
    policy_step: null,
    batch_no: null,
    repeat: 0,
    tries: 0,
    usable: 0,
    resolved: 0,
    mean_reward: null,
    sessions: 2,
    sampled_tokens: 10,
    staleness: null,
    ...fields,
  };
}

/** Defines the tests of the tables of batch streams, which every implementation of `Store` must pass. */
export function batchTests(store: () => Store): void {
  it('adds a batch stream once, changes it, and lists streams newest first', async () => {
    await store().transaction(async ({ batches }) => {
      expect(await batches.addStream(streamRow('b'))).toBe(true);
      expect(await batches.addStream(streamRow('b', { digest: 'other' }))).toBe(false);
      await batches.addStream(streamRow('c', { status: 'ended', ended_ms: 5 }));
      await batches.updateStream('b', { last_batch: 2, policy_step: 7, policy_version: 'v7' });
      expect(await batches.lockStream('missing')).toBeUndefined();
    });
    const changed = streamRow('b', { last_batch: 2, policy_step: 7, policy_version: 'v7' });
    await store().read(async ({ batches }) => {
      expect(await batches.stream('b')).toEqual(changed);
      expect((await batches.streams({ status: null, limit: 9 })).map((row) => row.batch_id)).toEqual(['c', 'b']);
      expect(await batches.streams({ status: 'running', limit: 9 })).toEqual([changed]);
      expect(await batches.streams({ status: null, limit: 1 })).toHaveLength(1);
    });
    expect(await store().transaction(({ batches }) => batches.lockStream('b'))).toEqual(changed);
  });

  it('keeps the rows of a batch stream with their history, and counts those that are not sampled', async () => {
    await store().transaction(async ({ batches }) => {
      await batches.addRows(Array.from({ length: 1200 }, (_, index) => dataRow(index)));
      await batches.addRows([dataRow(1200, { problem: 'wrong' }), { ...dataRow(0), batch_id: 'c' }]);
      await batches.updateRow('b', 3, { retired: 1, rejections: 4 });
      await batches.updateRow('b', 4, { last_epoch: 2, mean_reward: 0.25, last_result: 'other' });
    });
    await store().read(async ({ batches }) => {
      expect(await batches.countUnsampledRows('b')).toEqual({ invalid: 1, retired: 1 });
      expect(await batches.countUnsampledRows('none')).toEqual({ invalid: 0, retired: 0 });
      expect(await batches.rowFields('b', 1198, 1300)).toEqual(['{"n":1198}', '{"n":1199}', '{"n":1200}']);
      const histories = await batches.histories('b');
      expect(histories).toHaveLength(1199);
      expect(histories[3]).toMatchObject({ row_index: 4, last_epoch: 2, mean_reward: 0.25, last_result: 'other' });
      expect(await batches.invalidRows('b', 9)).toMatchObject([{ row_index: 1200, problem: 'wrong' }]);
      expect(await batches.row('b', 3)).toEqual(dataRow(3, { retired: 1, rejections: 4 }));
      expect(await batches.row('b', 5000)).toBeUndefined();
    });
  });

  it('keeps the plan of the newest epoch of a batch stream', async () => {
    await store().transaction(async ({ batches }) => {
      await batches.putPlan('b', 0, '[1]');
      await batches.putPlan('c', 0, '[5]');
      await batches.putPlan('b', 1, '[2]');
      expect(await batches.plan('b', 1)).toBe('[2]');
      expect(await batches.plan('b', 2)).toBeUndefined();
      expect(await batches.plan('c', 0)).toBe('[5]');
    });
  });

  it('finds the groups of a batch stream by task, state, batch and repetition, and sums them', async () => {
    await store().transaction(async ({ batches }) => {
      for (let group = 0; group < 5; group++) await batches.addGroup(groupRow(group));
      await batches.addGroup({ ...groupRow(9), batch_id: 'c' });
      await batches.updateGroup('b', 0, { state: 'handed', batch_no: 2, resolved: 1, mean_reward: 0.5 });
      await batches.updateGroup('b', 1, { state: 'handed', batch_no: 1 });
      await batches.updateGroup('b', 2, { state: 'rejected', reason: 'all_wrong', sampled_tokens: 7 });
      await batches.updateGroup('b', 3, { state: 'expired', repeat: 1 });
    });
    await store().read(async ({ batches }) => {
      const numbers = (groups: readonly BatchGroupRow[]): number[] => groups.map((group) => group.group_no);
      expect(await batches.groupOfTask('t0')).toMatchObject({ group_no: 0, batch_no: 2, mean_reward: 0.5 });
      expect(await batches.groupOfTask('t8')).toBeUndefined();
      expect(numbers(await batches.groups('b', 'running', 9))).toEqual([4]);
      expect(numbers(await batches.groups('b', 'handed', 1))).toEqual([0]);
      expect(numbers(await batches.groupsOfBatches('b', 0, 2))).toEqual([1, 0]);
      expect(numbers(await batches.groupsOfBatches('b', 1, 2))).toEqual([0]);
      expect(await batches.groupToRepeat('b')).toMatchObject({ group_no: 3 });
      expect(await batches.groupToRepeat('c')).toBeUndefined();
      expect(await batches.sizeOf('b', 'handed')).toEqual({ groups: 2, resolved: 1 });
      expect(await batches.sizeOf('b', 'cancelled')).toEqual({ groups: 0, resolved: 0 });
      const totals = await batches.countGroups('b');
      expect(totals.find(({ state }) => state === 'handed')).toEqual({
        state: 'handed',
        reason: null,
        groups: 2,
        sessions: 4,
        resolved: 1,
        sampled_tokens: 20,
      });
      expect(totals.find(({ state }) => state === 'rejected')).toMatchObject({
        reason: 'all_wrong',
        sampled_tokens: 7,
      });
      expect(totals).toHaveLength(4);
    });
  });

  it('returns the open groups of a batch stream, and whether their tasks are stored', async () => {
    const states = ['running', 'ready', 'rejected', 'handed', 'expired'] as const;
    await store().transaction(async (tables) => {
      await tables.tasks.insert(taskRow('t1'));
      for (const [group, state] of states.entries()) await tables.batches.addGroup(groupRow(group, { state }));
      await tables.batches.updateGroup('b', 3, { batch_no: 1 });
      await tables.batches.updateGroup('b', 4, { repeat: 1 });
      await tables.batches.addGroup(groupRow(9, { batch_id: 'c' }));
      await tables.batches.addRows([dataRow(0, { problem: 'wrong' }), dataRow(1, { retired: 1 })]);
    });
    const { groups, unsampledRows } = await store().read(({ batches }) => batches.openState('b'));
    expect(groups.map((group) => [group.group_no, group.is_stored])).toEqual([
      [0, 0],
      [1, 1],
      [4, 0],
    ]);
    expect(groups[1]).toEqual({ ...groupRow(1, { state: 'ready' }), is_stored: 1 });
    expect(unsampledRows).toEqual({ invalid: 1, retired: 1 });
  });

  it('hands out groups of a batch stream with their rows, and changes groups by their tasks', async () => {
    const handed = await store().transaction(async ({ batches }) => {
      await batches.addRows([dataRow(0), dataRow(1), { ...dataRow(2), batch_id: 'c' }]);
      for (let group = 0; group < 4; group++) await batches.addGroup(groupRow(group, { state: 'ready' }));
      await batches.updateGroups(['t3', 'none'], { state: 'expired', repeat: 1 });
      const staleness = new Map([
        ['t2', '{"0":1}'],
        ['t0', '{"1":2}'],
      ]);
      return batches.handOut('b', 7, staleness);
    });
    const inBatch = { state: 'handed', batch_no: 7 } as const;
    expect(handed).toEqual([
      { ...groupRow(0, { ...inBatch, staleness: '{"1":2}' }), fields: '{"n":0}' },
      { ...groupRow(2, { ...inBatch, staleness: '{"0":1}' }), fields: null },
    ]);
    await store().read(async ({ batches }) => {
      expect(await batches.groupsOfBatch('b', 7)).toEqual(handed);
      expect(await batches.groupsOfBatch('b', 8)).toEqual([]);
      expect(await batches.groupOfTask('t3')).toMatchObject({ state: 'expired', repeat: 1 });
      const { groups, unsampledRows, newestRejections } = await batches.counts('b', 9);
      expect(groups.map(({ state, groups: count }) => [state, count]).sort()).toEqual([
        ['expired', 1],
        ['handed', 2],
        ['ready', 1],
      ]);
      expect([unsampledRows, newestRejections.size]).toEqual([{ invalid: 0, retired: 0 }, 0]);
    });
  });

  it('marks the results of the groups in some batches of a stream as collected', async () => {
    const noBlobs = { trajectory: null, completions: null, artifacts: null };
    await store().transaction(async (tables) => {
      for (let group = 0; group < 4; group++) {
        const session = { session_id: `s${group}`, task_id: `t${group}`, trainer: `trainer${group}` };
        await tables.tasks.insert(taskRow(session.task_id));
        await addSessions(tables, session.task_id, [session.session_id]);
        await tables.results.append(session, noBlobs);
        await tables.batches.addGroup(groupRow(group, { state: 'handed', batch_no: group === 3 ? null : group + 1 }));
      }
      await tables.results.collectBatches('b', 1, 2);
      await tables.results.collectBatches('c', 0, 9);
    });
    const uncollected = async (): Promise<string[]> =>
      (await store().read((tables) => tables.sessions.loads())).map((load) => load.trainer).sort();
    expect(await uncollected()).toEqual(['trainer0', 'trainer2', 'trainer3']);
    await store().transaction((tables) => tables.results.collectBatches('b', 0, 9));
    expect(await uncollected()).toEqual(['trainer3']);
  });

  it('sums the groups of a batch stream in whatever order they change, and whenever their changes are folded', async () => {
    const states: readonly BatchGroupState[] = ['running', 'ready', 'handed', 'rejected'];
    const changes = fc.record({
      group_no: fc.nat({ max: 3 }),
      state: fc.constantFrom(...states),
      reason: fc.constantFrom(null, 'all_wrong', 'all_right'),
      sampled_tokens: fc.nat({ max: 2 ** 40 }),
      fold: fc.boolean(),
    });
    let streams = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(changes, { maxLength: 12 }), async (list) => {
        const id = `folded-${streams++}`;
        await store().transaction(async ({ batches }) => {
          for (const no of [0, 1, 2, 3]) await batches.addGroup(groupRow(no, { batch_id: id, task_id: `${id}/${no}` }));
          for (const { group_no, fold, ...patch } of list) {
            await batches.updateGroup(id, group_no, patch);
            if (fold) await batches.foldChanges(id);
          }
        });
        await store().read(async ({ batches }) => {
          const totals = await batches.countGroups(id);
          for (const state of states) {
            const groups = await batches.groups(id, state, 9);
            for (const reason of [null, 'all_wrong', 'all_right']) {
              const own = groups.filter((group) => group.reason === reason);
              const tokens = own.reduce((sum, { sampled_tokens }) => sum + sampled_tokens, 0);
              const found = totals.find((total) => total.state === state && total.reason === reason);
              expect([found?.groups ?? 0, found?.sampled_tokens ?? 0]).toEqual([own.length, tokens]);
            }
          }
        });
      }),
      { numRuns: 20 },
    );
  });

  it('folds the changes of the groups of a batch stream into one sum for each state and reason', async () => {
    await store().transaction(async ({ batches }) => {
      for (let group = 0; group < 50; group++) {
        await batches.addGroup(groupRow(group));
        await batches.updateGroup('b', group, { state: 'rejected', reason: group < 9 ? 'filter' : 'all_wrong' });
      }
      await batches.addGroup({ ...groupRow(50), batch_id: 'c' });
      await batches.foldChanges('b');
      expect(await batches.foldChanges('b')).toBeLessThanOrEqual(2);
      expect(await batches.foldChanges('none')).toBe(0);
      const totals = await batches.countGroups('b');
      expect(totals.map(({ reason, groups }) => [reason, groups]).sort()).toEqual([
        ['all_wrong', 41],
        ['filter', 9],
      ]);
      expect(await batches.countGroups('c')).toMatchObject([{ state: 'running', groups: 1 }]);
    });
  });

  it('counts the rejected groups of a batch stream after the newest accepted one', async () => {
    await store().transaction(async ({ batches }) => {
      const accepted = { 2: 'handed', 3: 'expired', 4: 'ready' } as const;
      for (let group = 0; group < 9; group++) {
        const state = group in accepted ? accepted[group as keyof typeof accepted] : 'rejected';
        const reason = group === 8 ? 'filter' : 'all_wrong';
        await batches.addGroup(groupRow(group, { state, reason: state === 'rejected' ? reason : null }));
      }
      const counted = async (limit: number) => [...(await batches.newestRejections('b', limit))].sort();
      expect(await counted(9)).toEqual([
        ['all_wrong', 3],
        ['filter', 1],
      ]);
      expect(await counted(2)).toEqual([
        ['all_wrong', 1],
        ['filter', 1],
      ]);
      await batches.updateGroup('b', 8, { state: 'running' });
      expect(await counted(9)).toEqual([['all_wrong', 3]]);
      await batches.updateGroup('b', 8, { state: 'ready' });
      expect(await counted(9)).toEqual([]);
    });
  });

  it('counts the queued sessions of the running groups of a batch stream', async () => {
    await store().transaction(async (tables) => {
      await tables.tasks.insert(taskRow('t0', { total_sessions: 2 }));
      await tables.tasks.insert(taskRow('t1'));
      await addSessions(tables, 't0', ['s0', 's1']);
      await addSessions(tables, 't1', ['s2']);
      await tables.batches.addGroup(groupRow(0));
      await tables.batches.addGroup(groupRow(1, { state: 'cancelled' }));
      expect(await tables.batches.queuedSessions('b')).toBe(2);
      await tables.sessions.update('s0', { status: 'LEASED' });
      expect(await tables.batches.queuedSessions('b')).toBe(1);
    });
  });

  it('removes batch streams that ended long ago, with their rows and groups', async () => {
    await store().transaction(async ({ batches }) => {
      await batches.addStream(streamRow('b', { status: 'ended', ended_ms: 5 }));
      await batches.addStream(streamRow('c'));
      await batches.addRows([dataRow(0)]);
      await batches.addGroup(groupRow(0));
      expect(await batches.removeEnded(5, 9)).toBe(0);
      expect(await batches.removeEnded(6, 9)).toBe(1);
      expect(await batches.row('b', 0)).toBeUndefined();
      expect(await batches.groupOfTask('t0')).toBeUndefined();
      expect(await batches.countGroups('b')).toEqual([]);
      expect((await batches.streams({ status: null, limit: 9 })).map((row) => row.batch_id)).toEqual(['c']);
    });
  });
}
