import { OUTCOMES } from '@floe-rl/core/protocol';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { FactFilter } from '../../src/store/facts.ts';
import type { ClaimRequest, SessionRow, Store, StoreTables } from '../../src/store/index.ts';
import { AT, addSessions, blob, factRow, NO_BLOBS, named, taskRow } from './store-rows.ts';

/** Defines the tests of the less frequent operations of each table, which every implementation of `Store` must pass. */
export function tableTests(store: () => Store): void {
  taskTests(store);
  claimTests(store);
  sessionTests(store);
  collectTests(store);
  retentionTests(store);
  smallTableTests(store);
}

const CLAIM: ClaimRequest = {
  limit: 100,
  nodeId: 'n1',
  trainer: 'default',
  order: 'fifo',
  nowMs: 10,
  leaseExpiresMs: 110,
  updatedAt: AT,
};

function claim(tables: StoreTables, fields: Partial<ClaimRequest> = {}): Promise<SessionRow[]> {
  return tables.sessions.claim({ ...CLAIM, ...fields });
}

const ALL_FACTS: FactFilter = { values: {}, ranges: {}, usable: null, sinceMs: null, untilMs: null };

const idsOf = (rows: readonly SessionRow[]): string[] => rows.map((row) => row.session_id);

function taskTests(store: () => Store): void {
  it('finds tasks by id, key and state, newest first', async () => {
    await store().transaction(async (tables) => {
      await tables.tasks.insert(taskRow('a', { idempotency_key: 'key' }));
      await tables.tasks.insert(taskRow('b'));
      await tables.tasks.insert(taskRow('c', { status: 'cancelled' }));
    });
    await store().read(async ({ tasks }) => {
      expect(await tasks.findByKey('key')).toEqual(taskRow('a', { idempotency_key: 'key' }) && (await tasks.get('a')));
      expect(await tasks.findByKey('none')).toBeUndefined();
      expect((await tasks.getMany(['c', 'a', 'none'])).map((row) => row.task_id).sort()).toEqual(['a', 'c']);
      expect((await tasks.list({ status: null, limit: 2 })).map((row) => row.task_id)).toEqual(['c', 'b']);
      expect((await tasks.list({ status: 'running', limit: 9 })).map((row) => row.task_id)).toEqual(['b', 'a']);
      expect(await tasks.countByStatus()).toEqual(
        new Map([
          ['running', 2],
          ['cancelled', 1],
        ]),
      );
    });
  });

  it('counts tasks by their current status, before and after the changes are summed', async () => {
    const counts = () => store().read(({ tasks }) => tasks.countByStatus());
    const fold = (limit: number) => store().transaction(({ tasks }) => tasks.foldCounts(limit));
    await fold(0);
    expect(await counts()).toEqual(new Map());
    await store().transaction(async ({ tasks }) => {
      for (const id of ['a', 'b', 'c']) await tasks.insert(taskRow(id));
      await tasks.update('a', { status: 'completed', ended_ms: 1 });
      await tasks.update('b', { status: 'cancelled' });
    });
    const three = new Map([
      ['running', 1],
      ['completed', 1],
      ['cancelled', 1],
    ]);
    for (const limit of [1_000, 1, 1]) {
      expect(await counts()).toEqual(three);
      await fold(limit);
    }
    expect(await counts()).toEqual(three);
    await store().transaction(({ tasks }) => tasks.removeEnded(5, 9));
    await fold(1);
    three.delete('completed');
    expect(await counts()).toEqual(three);
  });

  it('lists a running task as overdue from its deadline on', async () => {
    await store().transaction(async ({ tasks }) => {
      await tasks.insert(taskRow('due', { deadline_ms: 50.5 }));
      await tasks.insert(taskRow('later', { deadline_ms: 60 }));
      await tasks.insert(taskRow('without'));
      await tasks.insert(taskRow('over', { deadline_ms: 1, status: 'completed' }));
    });
    const overdue = async (nowMs: number, limit = 9) =>
      (await store().read(({ tasks }) => tasks.overdue(nowMs, limit))).map((row) => row.task_id).sort();
    expect(await overdue(50)).toEqual([]);
    expect(await overdue(50.5)).toEqual(['due']);
    expect(await overdue(60)).toEqual(['due', 'later']);
    expect(await overdue(60, 1)).toHaveLength(1);
  });

  it('lists a cancelled task as unfinished until it has ended', async () => {
    await store().transaction(async ({ tasks }) => {
      await tasks.insert(taskRow('a', { status: 'cancelled' }));
      await tasks.insert(taskRow('b'));
    });
    const unfinished = async () =>
      (await store().read(({ tasks }) => tasks.unfinishedCancelled(9))).map((row) => row.task_id);
    expect(await unfinished()).toEqual(['a']);
    await store().transaction(({ tasks }) => tasks.update('a', { ended_ms: 5 }));
    expect(await unfinished()).toEqual([]);
  });
}

function claimTests(store: () => Store): void {
  it('keeps a separate queue for each trainer', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0', 'a1']);
      await addSessions(tables, 'b', ['b0'], { trainer: 'other' });
      await addSessions(tables, 'c', ['c0'], { trainer: 'waits', not_before_ms: 50 });
    });
    expect((await store().read(({ sessions }) => sessions.waitingTrainers(10))).sort()).toEqual(['default', 'other']);
    expect((await store().read(({ sessions }) => sessions.waitingTrainers(50))).sort()).toEqual([
      'default',
      'other',
      'waits',
    ]);
    expect(idsOf(await store().transaction((tables) => claim(tables, { trainer: 'other' })))).toEqual(['b0']);
    expect(await store().read(({ sessions }) => sessions.waitingTrainers(10))).toEqual(['default']);
  });

  it('claims the longest sessions first within a priority when requested', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['short'], { expected_ms: 10 });
      await addSessions(tables, 'b', ['long', 'long too'], { expected_ms: 99.5 });
      await addSessions(tables, 'c', ['urgent'], { expected_ms: 1, priority: 1 });
    });
    const rows = await store().transaction((tables) => claim(tables, { order: 'longest_first', limit: 3 }));
    expect(idsOf(rows)).toEqual(['urgent', 'long', 'long too']);
  });

  it('claims the sessions that have waited for many times their duration when requested', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['long'], { expected_ms: 1000 });
      await addSessions(tables, 'b', ['short'], { expected_ms: 10 });
    });
    expect(idsOf(await store().transaction((tables) => claim(tables, { order: 'overdue', nowMs: 40 })))).toEqual([]);
    expect(idsOf(await store().transaction((tables) => claim(tables, { order: 'overdue', nowMs: 41 })))).toEqual([
      'short',
    ]);
  });

  it.each(['fifo', 'longest_first'] as const)(
    'claims sessions that fit into the memory of the node, up to the first one that does not (%s)',
    async (order) => {
      await store().transaction(async (tables) => {
        await addSessions(tables, 'a', ['one', 'two'], { memory_mb: 30 });
        await addSessions(tables, 'b', ['too large for the node'], { memory_mb: 101 });
        await addSessions(tables, 'c', ['three'], { memory_mb: 50 });
        await addSessions(tables, 'd', ['small'], { memory_mb: 1 });
      });
      const claimed = async (freeMb: number): Promise<string[]> =>
        idsOf(await store().transaction((tables) => claim(tables, { order, memory: { totalMb: 100, freeMb } })));
      const isDue = (totalMb: number): Promise<boolean> =>
        store().transaction((tables) => tables.sessions.hasDue({ ...CLAIM, order, memory: { totalMb, freeMb: 0 } }));
      expect(await store().read((tables) => tables.sessions.queued())).toEqual(
        expect.arrayContaining(
          [30, 101, 50, 1].map((memory_mb) => ({ trainer: 'default', memory_mb, sessions: memory_mb === 30 ? 2 : 1 })),
        ),
      );
      expect(await claimed(29)).toEqual([]);
      expect(await claimed(100)).toEqual(['one', 'two']);
      expect(await isDue(100)).toBe(true);
      expect(await claimed(49)).toEqual([]);
      expect(await claimed(51)).toEqual(['three', 'small']);
      expect(await isDue(100)).toBe(false);
      expect(await isDue(101)).toBe(true);
    },
  );

  it('prefers other nodes for a session that failed on a node, for a limited time', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0']);
      await tables.sessions.update('a0', { avoid_node: 'n1', avoid_until_ms: 30 });
    });
    expect(await store().transaction((tables) => claim(tables, { nowMs: 29 }))).toEqual([]);
    expect(await store().transaction((tables) => claim(tables, { nowMs: 30, limit: 0 }))).toEqual([]);
    const elsewhere = () => store().transaction((tables) => claim(tables, { nowMs: 29, nodeId: 'n2' }));
    expect(await elsewhere()).toHaveLength(1);
    await store().transaction(({ sessions }) => sessions.update('a0', { status: 'QUEUED', lease_expires_ms: null }));
    expect(await store().transaction((tables) => claim(tables, { nowMs: 30 }))).toHaveLength(1);
  });

  it('claims in the requested order whatever the queue contains', async () => {
    const session = fc.record({ priority: fc.integer({ min: -2, max: 2 }), expected: fc.integer({ min: 0, max: 3 }) });
    let round = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(session, { minLength: 1, maxLength: 12 }), fc.boolean(), async (list, longest) => {
        const trainer = `trainer-${round++}`;
        const queue = list.map((one, i) => ({ ...one, id: `${trainer}-${i}`, place: i }));
        await store().transaction(async (tables) => {
          for (const { id, priority, expected } of queue) {
            await addSessions(tables, id, [id], { trainer, priority, expected_ms: expected });
          }
        });
        const order = longest ? ('longest_first' as const) : ('fifo' as const);
        const rows = await store().transaction((tables) => claim(tables, { trainer, order, limit: 8 }));
        const wanted = queue.sort(
          (a, b) => b.priority - a.priority || (longest ? b.expected - a.expected : 0) || a.place - b.place,
        );
        expect(idsOf(rows)).toEqual(wanted.slice(0, 8).map(({ id }) => id));
      }),
      { numRuns: 15 },
    );
  });
}

function sessionTests(store: () => Store): void {
  it('finds sessions by id, task and holder', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0', 'a1', 'a2']);
      await addSessions(tables, 'b', ['b0']);
      await claim(tables, { limit: 2 });
      await claim(tables, { limit: 1, nodeId: 'n2' });
      await tables.sessions.update('a1', { status: 'COMPLETED', lease_expires_ms: null, unusable: 'no_reward' });
    });
    await store().read(async ({ sessions }) => {
      expect(await sessions.get('a0')).toMatchObject({
        status: 'LEASED',
        node_id: 'n1',
        expected_ms: 0,
        unusable: null,
      });
      expect(await sessions.get('none')).toBeUndefined();
      expect(idsOf(await sessions.getMany(['b0', 'none', 'a2'])).sort()).toEqual(['a2', 'b0']);
      expect(idsOf(await sessions.ofTask('a'))).toEqual(['a0', 'a1', 'a2']);
      expect(idsOf(await sessions.ofTask('a', { after: 0, limit: 1 }))).toEqual(['a1']);
      expect(await sessions.unusable('a')).toEqual(new Map([['no_reward', 1]]));
      expect(await sessions.leasedByNode()).toEqual(
        new Map([
          ['n1', { count: 1, memoryMb: 100 }],
          ['n2', { count: 1, memoryMb: 100 }],
        ]),
      );
      expect(idsOf(await sessions.leased(null, 10))).toEqual(['a0', 'a2']);
      expect(idsOf(await sessions.leased(null, 1))).toEqual(['a0']);
      expect(idsOf(await sessions.leased('b', 10))).toEqual([]);
      expect(await sessions.heldBy('n1')).toEqual({ count: 1, memoryMb: 100 });
      expect(await sessions.heldBy('n3')).toEqual({ count: 0, memoryMb: 0 });
    });
    await store().transaction(async ({ sessions }) => {
      expect(idsOf(await sessions.lockHeldBy('n1'))).toEqual(['a0']);
      expect(idsOf(await sessions.lockMany(['b0', 'a2', 'none', 'a0']))).toEqual(['a0', 'a2', 'b0']);
      expect(idsOf(await sessions.lockOpen('a', 9)).sort()).toEqual(['a0', 'a2']);
      expect(await sessions.lockOpen('a', 1)).toHaveLength(1);
    });
  });

  it('counts sessions that are not queued by status, those that have ended by their facts', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0', 'a1', 'a2', 'a3', 'a4', 'a5']);
      await claim(tables, { limit: 1 });
      await tables.sessions.update('a1', { status: 'RUNNING', node_id: 'n', lease_expires_ms: 5 });
      const ends = { a2: 'completed', a3: 'truncated_turns', a4: 'cancelled' } as const;
      for (const [id, outcome] of Object.entries(ends)) {
        await tables.sessions.update(id, { status: OUTCOMES[outcome].status, lease_expires_ms: null, summary: '{}' });
        await tables.facts.add(factRow(id, { task_id: 'a', outcome }));
      }
    });
    const expected = { LEASED: 1, RUNNING: 1, COMPLETED: 2, CANCELLED: 1 };
    for (const folded of [0, 2, 3]) {
      await store().transaction(({ facts }) => facts.fold(folded));
      const counts = await store().read(({ sessions }) => sessions.countStarted());
      expect(Object.fromEntries(counts)).toEqual(expected);
    }
  });

  it('lists leased open sessions before queued ones', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0', 'a1', 'a2']);
      await tables.sessions.update('a2', { status: 'RUNNING', node_id: 'n', lease_expires_ms: 5 });
    });
    expect(idsOf(await store().transaction(({ sessions }) => sessions.lockOpen('a', 9)))).toEqual(['a2', 'a0', 'a1']);
  });

  it("compares a node's report with the stored rows, and stores it", async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0', 'a1']);
      await claim(tables);
    });
    const report = (session_id: string, fields: object = {}) => ({
      ...{ session_id, epoch: 1, status: 'LEASED' as const, turns: 0, sampled_tokens: 0, ...fields },
    });
    const differing = (fields: object, freshUntilMs = 110, nodeId = 'n1') =>
      store().read(({ sessions }) => sessions.differing(nodeId, [report('a0', fields), report('a1')], freshUntilMs));
    expect(await differing({})).toEqual([]);
    for (const fields of [{ epoch: 2 }, { turns: 1 }, { sampled_tokens: 5 }, { status: 'RUNNING' }]) {
      expect(await differing(fields)).toEqual(['a0']);
    }
    expect((await differing({}, 111)).sort()).toEqual(['a0', 'a1']);
    expect((await differing({}, 110, 'n2')).sort()).toEqual(['a0', 'a1']);
    const further = { status: 'RUNNING', turns: 3, sampled_tokens: 5_000_000_000 } as const;
    await store().transaction(({ sessions }) => sessions.recordProgress([report('a0', further), report('a1')], 'now'));
    expect(await store().read(({ sessions }) => sessions.get('a0'))).toMatchObject({ ...further, updated_at: 'now' });
    expect(await differing(further)).toEqual([]);
  });
}

function collectTests(store: () => Store): void {
  const results = (list: readonly [string, string, string][]) =>
    store().transaction(async (tables) => {
      const cursors: number[] = [];
      for (const [i, [id, taskId, trainer]] of list.entries()) {
        await addSessions(tables, `${taskId}-${id}`, [id], { trainer });
        await tables.sessions.update(id, { status: 'COMPLETED', summary: '{}' });
        const blobs = {
          trajectory: blob(`t-${id}`, 10),
          completions: blob(`c-${id}`, 5),
          artifacts: i === 0 ? blob('x', 1) : null,
        };
        cursors.push(await tables.results.append({ session_id: id, task_id: taskId, trainer }, blobs));
      }
      return cursors;
    });

  it('counts queued, running and uncollected sessions as the load of a trainer', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'q', ['q0', 'q1', 'q2']);
      await claim(tables, { limit: 1 });
      await addSessions(tables, 'p', ['p0'], { trainer: 'other' });
      for (const id of ['r', 's']) await tables.tasks.insert(taskRow(id));
      await tables.tasks.insert(taskRow('called', { callback_url: 'http://127.0.0.1/done' }));
      await tables.tasks.insert(taskRow('aliased'));
      await tables.aliases.put({ api: 'polar', alias: 'a', task_id: 'aliased' });
    });
    const [first = 0] = await results([
      ['r0', 'r', 'default'],
      ['r1', 'r', 'default'],
      ['r2', 's', 'third'],
      ['r3', 'called', 'fourth'],
      ['r4', 'aliased', 'fifth'],
    ]);
    const loads = () => store().read(({ sessions }) => sessions.loads());
    expect(await loads()).toEqual([
      { trainer: 'default', live: 1, uncollected_results: 2, uncollected_bytes: 31 },
      { trainer: 'third', live: 0, uncollected_results: 1, uncollected_bytes: 15 },
    ]);
    for (const [id, trainer] of [
      ['called', 'fourth'],
      ['aliased', 'fifth'],
    ] as const) {
      await store().transaction((tables) => tables.tasks.update(id, { status: 'completed', ended_ms: 1 }));
      expect(await loads()).toContainEqual({
        trainer,
        live: 0,
        uncollected_results: 1,
        uncollected_bytes: 15,
      });
    }
    await store().transaction((tables) => tables.results.collect('default', first));
    expect((await loads())[0]).toMatchObject({ uncollected_results: 1, uncollected_bytes: 15 });
    await store().transaction((tables) => tables.results.collect(null, 1_000_000));
    expect((await loads()).map((load) => load.trainer)).toEqual(['default']);
  });

  it('pages results by trainer and by task, and collects them by task', async () => {
    const [, second = 0] = await results([
      ['r0', 'r', 'x'],
      ['r1', 's', 'y'],
      ['r2', 'r', 'x'],
      ['r3', 'r', 'x'],
    ]);
    const ids = (rows: readonly { session_id: string }[]) => rows.map((row) => row.session_id);
    await store().read(async (tables) => {
      expect(ids(await tables.results.page(0, 9, 'x'))).toEqual(['r0', 'r2', 'r3']);
      expect(ids(await tables.results.page(second, 1, 'x'))).toEqual(['r2']);
      expect(ids(await tables.results.page(0, 9, null))).toEqual(['r0', 'r1', 'r2', 'r3']);
      expect(ids(await tables.results.ofTask('r'))).toEqual(['r0', 'r2', 'r3']);
      expect(ids(await tables.results.ofTask('r', { after: second, limit: 1 }))).toEqual(['r2']);
      expect(ids(await tables.results.ofTasks(['s', 'none', 'r']))).toEqual(['r0', 'r1', 'r2', 'r3']);
      expect(await tables.results.ofSession('r0')).toMatchObject({ trainer: 'x', trajectory_bytes: 10 });
      expect(await tables.results.ofSession('none')).toBeUndefined();
    });
    await store().transaction(async (tables) => {
      for (const id of ['r', 's']) await tables.tasks.insert(taskRow(id));
      await tables.results.collectTasks(['r']);
    });
    const loads = await store().read((tables) => tables.sessions.loads());
    expect(loads.map((load) => [load.trainer, load.uncollected_results])).toEqual([['y', 1]]);
  });

  it('keeps the cursor of a consumer, and distinguishes one trainer from all', async () => {
    const put = (trainer: string | null, cursor: number, consumer = 'c') =>
      store().transaction((tables) => tables.results.putConsumer({ consumer, trainer, cursor }));
    const get = () => store().read((tables) => tables.results.consumer('c'));
    expect(await get()).toBeUndefined();
    await put(null, 5);
    expect(await get()).toEqual({ consumer: 'c', trainer: null, cursor: 5 });
    expect(await put('x', 9)).toEqual({ consumer: 'c', trainer: null, cursor: 9 });
    expect(await put(null, 7)).toEqual({ consumer: 'c', trainer: null, cursor: 9 });
    expect(await get()).toEqual({ consumer: 'c', trainer: null, cursor: 9 });
    expect(await put('x', 1, 'd')).toEqual({ consumer: 'd', trainer: 'x', cursor: 1 });
  });

  it('finds blobs referenced by results and by deliveries', async () => {
    await results([['r0', 'r', 'x']]);
    await store().transaction((tables) =>
      tables.results.addDelivery({
        ...{ session_id: 'd', epoch: 1, kind: 'retried', digest: '', summary: '{}', delivered_at: AT },
        ...{ trajectory_ref: null, completions_ref: 'c-d', artifacts_ref: 'a-d' },
      }),
    );
    const asked = ['t-r0', 'c-r0', 'x', 'c-d', 'a-d', 'nobody'];
    const found = await store().read((tables) => tables.results.referenced(asked));
    expect([...found].sort()).toEqual(asked.slice(0, 5).sort());
    expect(await store().read((tables) => tables.results.referenced([]))).toEqual(new Set());
  });

  it('replaces a partial result by the result, and never replaces a result', async () => {
    const row = {
      ...{ session_id: 's', epoch: 1, digest: 'd', summary: '{}', delivered_at: AT },
      ...{ trajectory_ref: null, completions_ref: null, artifacts_ref: null },
    };
    await store().transaction((tables) => tables.results.addDelivery({ ...row, kind: 'partial' }));
    await store().transaction((tables) => tables.results.addDelivery({ ...row, kind: 'result', digest: 'e' }));
    expect(await store().read((tables) => tables.results.deliveriesOf('s'))).toEqual([
      { ...row, kind: 'result', digest: 'e' },
    ]);
    const again = store().transaction((tables) => tables.results.addDelivery({ ...row, kind: 'partial' }));
    await expect(again).rejects.toThrow();
    await store().transaction((tables) => tables.results.addDelivery({ ...row, kind: 'retried', epoch: 2 }));
    expect((await store().read((tables) => tables.results.deliveriesOf('s'))).map((one) => one.epoch)).toEqual([1, 2]);
  });
}

function retentionTests(store: () => Store): void {
  it('removes ended tasks with all their rows, unless their results are uncollected', async () => {
    const ended = async (tables: StoreTables, id: string, endedMs: number, collected: boolean): Promise<void> => {
      await tables.tasks.insert(taskRow(id, { status: 'completed', ended_ms: endedMs }));
      await addSessions(tables, id, [`${id}-s`]);
      await tables.sessions.update(`${id}-s`, { status: 'COMPLETED', summary: '{}' });
      const session = { session_id: `${id}-s`, task_id: id, trainer: 'default' };
      await tables.results.append(session, { ...NO_BLOBS, trajectory: blob(`${id}-t`) });
      await tables.results.addDelivery({
        ...{ session_id: `${id}-s`, epoch: 1, kind: 'result', digest: '', summary: '{}', delivered_at: AT },
        ...{ trajectory_ref: `${id}-t`, completions_ref: null, artifacts_ref: null },
      });
      if (collected) await tables.results.collectTasks([id]);
    };
    await store().transaction(async (tables) => {
      for (const id of ['old', 'older']) await ended(tables, id, id === 'old' ? 20 : 10, true);
      await ended(tables, 'young', 100, true);
      await ended(tables, 'wanted', 5, false);
      await ended(tables, 'owed', 5, true);
      const callback = { tries: 0, next_try_ms: 0, last_error: null, delivered_at: null, url: 'http://x' };
      await tables.callbacks.insert({ ...callback, task_id: 'owed' });
      await tables.callbacks.insert({ ...callback, task_id: 'old', delivered_at: AT });
      await tables.tasks.insert(taskRow('running'));
    });
    expect(await store().transaction(({ tasks }) => tasks.removeEnded(100, 1))).toEqual({ tasks: 1, sessions: 1 });
    expect(await store().read(({ tasks }) => tasks.get('older'))).toBeUndefined();
    expect(await store().transaction(({ tasks }) => tasks.removeEnded(100, 9))).toEqual({ tasks: 1, sessions: 1 });
    expect(await store().transaction(({ tasks }) => tasks.removeEnded(100, 9))).toEqual({ tasks: 0, sessions: 0 });
    await store().read(async (tables) => {
      const left = await tables.tasks.list({ status: null, limit: 9 });
      expect(left.map((row) => row.task_id).sort()).toEqual(['owed', 'running', 'wanted', 'young']);
      expect(await tables.sessions.get('old-s')).toBeUndefined();
      expect(await tables.results.ofSession('old-s')).toBeUndefined();
      expect(await tables.results.deliveriesOf('old-s')).toEqual([]);
      expect(await tables.callbacks.get('old')).toBeUndefined();
      expect(await tables.results.referenced(['old-t', 'young-t'])).toEqual(new Set(['young-t']));
    });
  });

  it('removes a task with many sessions in parts, and the task with the last of them', async () => {
    const ids = Array.from({ length: 7 }, (_, i) => `s${i}`);
    await store().transaction(async (tables) => {
      await tables.tasks.insert(taskRow('a', { status: 'completed', ended_ms: 1, total_sessions: 7 }));
      await tables.tasks.insert(taskRow('b', { status: 'completed', ended_ms: 2, total_sessions: 1 }));
      await addSessions(tables, 'a', ids);
      await addSessions(tables, 'b', ['b0']);
      for (const id of ids) {
        await tables.sessions.update(id, { status: 'COMPLETED', summary: '{}' });
        await tables.results.append({ ...named(id), task_id: 'a' }, NO_BLOBS);
        await tables.facts.add(factRow(id, { task_id: 'a' }));
      }
      await tables.results.collectTasks(['a']);
      await tables.facts.fold(5);
    });
    const remove = () => store().transaction(({ tasks }) => tasks.removeEnded(5, 3));
    const ended = async () => (await store().read(({ facts }) => facts.totals(ALL_FACTS, [], 1)))[0]?.sessions ?? 0;
    expect(await remove()).toEqual({ tasks: 0, sessions: 3 });
    expect(await store().read(({ tasks }) => tasks.get('a'))).toBeDefined();
    expect(await ended()).toBe(4);
    const rest = [await remove(), await remove(), await remove()];
    expect(rest.map(({ sessions }) => sessions > 3)).toEqual([false, false, false]);
    expect(rest.reduce((sum, { sessions }) => sum + sessions, 0)).toBe(5);
    expect(rest.reduce((sum, { tasks }) => sum + tasks, 0)).toBe(2);
    expect(await ended()).toBe(0);
    expect(await remove()).toEqual({ tasks: 0, sessions: 0 });
  });

  it('assigns greater cursors after the newest result is removed', async () => {
    const append = (id: string) =>
      store().transaction((tables) => tables.results.append({ ...named(id), task_id: id }, NO_BLOBS));
    await store().transaction((tables) => tables.tasks.insert(taskRow('a', { status: 'completed', ended_ms: 1 })));
    const first = await append('a');
    await store().transaction((tables) => tables.results.collect(null, first));
    expect(await store().transaction(({ tasks }) => tasks.removeEnded(5, 9))).toMatchObject({ tasks: 1 });
    expect(await append('b')).toBeGreaterThan(first);
  });
}

function smallTableTests(store: () => Store): void {
  it('averages durations equally at first, then gives older ones less weight', async () => {
    const observe = (key: string, ms: number) => store().transaction(({ durations }) => durations.observe(key, ms));
    const mean = async (key: string) => (await store().read(({ durations }) => durations.means([key]))).get(key);
    expect(await store().read(({ durations }) => durations.overallMean())).toBeNull();
    await observe('k', 10);
    await observe('k', 20.5);
    expect(await mean('k')).toBeCloseTo(15.25, 6);
    for (let i = 0; i < 20; i++) await observe('k', 100);
    expect(await mean('k')).toBeGreaterThan(99);
    await observe('l', 0);
    expect(await store().read(({ durations }) => durations.overallMean())).toBeCloseTo(((await mean('k')) ?? 0) / 2, 6);
    expect(await mean('none')).toBeUndefined();
  });

  it('keeps the newest task of each alias, until the task is removed', async () => {
    await store().transaction(async ({ tasks, aliases }) => {
      await tasks.insert(taskRow('t1', { status: 'completed', ended_ms: 1 }));
      await tasks.insert(taskRow('t2', { status: 'completed', ended_ms: 1 }));
      await tasks.insert(taskRow('t3'));
      await aliases.put({ api: 'polar', alias: 'a/b', task_id: 't1' });
      await aliases.put({ api: 'polar', alias: 'a/b', task_id: 't2' });
      await aliases.put({ api: 'prorl', alias: 'a/b', task_id: 't3' });
    });
    await store().read(async ({ aliases }) => {
      expect(await aliases.get('polar', 'a/b')).toEqual({ api: 'polar', alias: 'a/b', task_id: 't2' });
      expect(await aliases.get('polar', 'none')).toBeUndefined();
      expect(await aliases.ofTask('t1')).toBeUndefined();
      expect(await aliases.ofTask('t3')).toMatchObject({ api: 'prorl' });
      expect(await aliases.list('polar', 9)).toMatchObject([{ alias: 'a/b', task_id: 't2', status: 'completed' }]);
    });
    await store().transaction(({ tasks }) => tasks.removeEnded(2, 9));
    expect(await store().read(({ aliases }) => aliases.list('polar', 9))).toEqual([]);
    expect(await store().read(({ aliases }) => aliases.get('polar', 'a/b'))).toBeUndefined();
    expect(await store().read(({ aliases }) => aliases.list('prorl', 9))).toHaveLength(1);
  });

  it('keeps engines and their common settings', async () => {
    const row = { engine_id: 'e', spec: '{}', registered_at: AT };
    await store().transaction(async ({ engines }) => {
      await engines.put({ ...row, engine_id: 'f' });
      await engines.put({ ...row, spec: '{"old":true}' });
      await engines.put(row);
    });
    expect(await store().read(({ engines }) => engines.list())).toEqual([row, { ...row, engine_id: 'f' }]);
    await store().transaction(({ engines }) => engines.remove('f'));
    expect(await store().read(({ engines }) => engines.list())).toEqual([row]);
    const before = await store().read(({ engines }) => engines.state());
    const after = await store().transaction(({ engines }) => engines.advance({ paused: 'keep', policy_version: 'v1' }));
    expect(after).toEqual({ ...before, revision: before.revision + 1, paused: 'keep', policy_version: 'v1' });
    expect(await store().read(({ engines }) => engines.state())).toEqual(after);
  });

  it('keeps the tries of a callback, and reserves it during a try', async () => {
    const row = { task_id: 't', url: 'http://x', tries: 0, next_try_ms: 5, last_error: null, delivered_at: null };
    await store().transaction(({ callbacks }) => callbacks.insert(row));
    expect(await store().transaction(({ callbacks }) => callbacks.claimDue(5, 9, 50))).toEqual([
      { ...row, next_try_ms: 50 },
    ]);
    expect(await store().transaction(({ callbacks }) => callbacks.claimDue(49, 9, 99))).toEqual([]);
    await store().transaction(({ callbacks }) => callbacks.update('t', { tries: 1, last_error: 'no' }));
    expect(await store().read(({ callbacks }) => callbacks.get('t'))).toEqual({
      ...{ ...row, next_try_ms: 50, tries: 1, last_error: 'no' },
    });
    expect(await store().read(({ callbacks }) => callbacks.countUndelivered())).toBe(1);
  });

  it('returns texts unchanged', async () => {
    const text = fc.string({ unit: 'binary', maxLength: 30 }).filter((one) => !one.includes('\u0000'));
    let round = 0;
    await fc.assert(
      fc.asyncProperty(text, async (request) => {
        const id = `t${round++}`;
        await store().transaction(({ tasks }) => tasks.insert(taskRow(id, { request, reward_sum: 0.1 + 0.2 })));
        expect(await store().read(({ tasks }) => tasks.get(id))).toMatchObject({ request, reward_sum: 0.1 + 0.2 });
      }),
      { numRuns: 20, examples: [["'; drop table tasks; --"], ['{"a":"\\u0000"}'], ['日本語 🦆']] },
    );
  });
}
