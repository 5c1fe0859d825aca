import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { Store, StoreTables } from '../../src/store/index.ts';
import { AT, addSessions, NO_BLOBS, named, taskRow } from './store-rows.ts';

function times<T>(count: number, work: (index: number) => Promise<T>): Promise<T[]> {
  return Promise.all(Array.from({ length: count }, (_, index) => work(index)));
}

/** Defines the tests of concurrent transactions, which every implementation of `Store` must pass. */
export function raceTests(store: () => Store): void {
  claimRaces(store);
  lockRaces(store);
  cursorRaces(store);
  decisionRaces(store);
}

function claimRaces(store: () => Store): void {
  it('shares the queue among concurrent claims without leasing a session twice', async () => {
    const ids = Array.from({ length: 300 }, (_, i) => `s${String(i).padStart(3, '0')}`);
    await store().transaction((tables) => addSessions(tables, 'a', ids));
    const claimed = await times(60, (i) =>
      store().transaction((tables) =>
        tables.sessions.claim({
          limit: 1 + (i % 7),
          nodeId: `n${i}`,
          trainer: 'default',
          order: i % 2 === 0 ? 'fifo' : 'longest_first',
          nowMs: 10,
          leaseExpiresMs: 100,
          updatedAt: AT,
        }),
      ),
    );
    const taken = claimed.flatMap((rows, i) => rows.map((row) => ({ id: row.session_id, node: `n${i}` })));
    expect(new Set(taken.map(({ id }) => id)).size).toBe(taken.length);
    for (const { id, node } of taken) {
      expect(await store().read((tables) => tables.sessions.get(id))).toMatchObject({
        node_id: node,
        status: 'LEASED',
      });
    }
    const counts = await store().read((tables) => tables.sessions.countStarted());
    const queued = await store().read((tables) => tables.sessions.queued());
    expect((queued[0]?.sessions ?? 0) + (counts.get('LEASED') ?? 0)).toBe(300);
    expect(counts.get('LEASED')).toBe(taken.length);
  });

  it('takes expired leases back once', async () => {
    const ids = Array.from({ length: 100 }, (_, i) => `s${i}`);
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ids);
      await tables.sessions.claim({
        ...{ limit: 100, nodeId: 'n', trainer: 'default', order: 'fifo', nowMs: 1, leaseExpiresMs: 5, updatedAt: AT },
      });
    });
    const requeued = await times(20, () =>
      store().transaction(async (tables) => {
        const rows = await tables.sessions.lockExpired(10, 10);
        for (const row of rows) {
          await tables.sessions.update(row.session_id, {
            ...{ status: 'QUEUED', epoch: row.epoch + 1, lease_expires_ms: null, node_id: null },
          });
        }
        return rows.map((row) => row.session_id);
      }),
    );
    const all = requeued.flat();
    expect(new Set(all).size).toBe(all.length);
    const rows = await store().read((tables) => tables.sessions.getMany(ids));
    expect(rows.filter((row) => row.epoch === 2)).toHaveLength(all.length);
  });

  it('gives a due callback to one server', async () => {
    await store().transaction(async (tables) => {
      for (let i = 0; i < 50; i++) {
        const row = {
          task_id: `t${i}`,
          url: 'http://x',
          tries: 0,
          next_try_ms: 5,
          last_error: null,
          delivered_at: null,
        };
        await tables.callbacks.insert(row);
      }
    });
    const claimed = (
      await times(20, () => store().transaction((tables) => tables.callbacks.claimDue(6, 5, 100)))
    ).flat();
    expect(new Set(claimed.map((row) => row.task_id)).size).toBe(claimed.length);
    expect(claimed.every((row) => row.next_try_ms === 100)).toBe(true);
  });
}

function lockRaces(store: () => Store): void {
  const adders: [
    string,
    (tables: StoreTables) => Promise<void>,
    (tables: StoreTables) => Promise<number | undefined>,
  ][] = [
    [
      'task',
      async (tables) => {
        const row = await tables.tasks.lock('a');
        await tables.tasks.update('a', { refilled: (row?.refilled ?? 0) + 1 });
      },
      async (tables) => (await tables.tasks.get('a'))?.refilled,
    ],
    [
      'session',
      async (tables) => {
        const row = await tables.sessions.lock('s');
        await tables.sessions.update('s', { turns: (row?.turns ?? 0) + 1 });
      },
      async (tables) => (await tables.sessions.get('s'))?.turns,
    ],
    [
      'list of sessions',
      async (tables) => {
        const rows = await tables.sessions.lockMany(['s', 'missing']);
        for (const row of rows) await tables.sessions.update(row.session_id, { turns: row.turns + 1 });
      },
      async (tables) => (await tables.sessions.get('s'))?.turns,
    ],
    [
      'node',
      async (tables) => {
        const row = await tables.nodes.lock('n');
        await tables.nodes.update('n', { takeovers: (row?.takeovers ?? 0) + 1 });
      },
      async (tables) => (await tables.nodes.get('n'))?.takeovers,
    ],
  ];

  it.each(adders)('loses nothing when a locked %s is changed concurrently', async (_, add, read) => {
    await store().transaction(async (tables) => {
      await tables.tasks.insert(taskRow('a'));
      await addSessions(tables, 'a', ['s']);
      await tables.nodes.put({
        ...{ node_id: 'n', instance: 'i', takeovers: 0, registration: '{}', metrics: '{}', engines: null, draining: 0 },
        refuses: null,
        claims: null,
        ...{ last_seen_ms: 1, registered_at: AT, last_heartbeat: AT },
      });
    });
    await times(40, () => store().transaction(add));
    expect(await store().read(read)).toBe(40);
  });

  it.each([
    ['task id', 't', null],
    ['idempotency key', null, 'k'],
  ])(
    'adds no task with a %s that another transaction has reserved, until that transaction ends',
    async (_, id, key) => {
      const submit = (newId: string, beforeInsert: (tables: StoreTables) => Promise<void>) =>
        store().transaction(async (tables) => {
          await tables.tasks.reserve(id, key);
          const known = id === null ? await tables.tasks.findByKey('k') : await tables.tasks.get(id);
          if (known !== undefined) return `found ${known.task_id}`;
          await beforeInsert(tables);
          await tables.tasks.insert(taskRow(id ?? newId, { idempotency_key: key }));
          return `added ${id ?? newId}`;
        });
      // Two concurrent transactions make a store open two connections, so that the second submission below need not wait for a connection.
      await times(2, () => store().transaction((tables) => tables.tasks.countByStatus()));
      let second: Promise<string> | null = null;
      const first = await submit('t', async (tables) => {
        second ??= submit('t2', async () => {});
        // The second submission needs fewer queries than this, so it would add its task first if the reservation did not stop it.
        for (let n = 0; n < 50; n++) await tables.tasks.countByStatus();
      });
      expect([first, await second]).toEqual(['added t', 'found t']);
    },
  );

  it('completes transactions that lock in opposite orders', async () => {
    await store().transaction((tables) => addSessions(tables, 'a', ['x', 'y']));
    await times(6, (i) =>
      store().transaction(async (tables) => {
        for (const id of i % 2 === 0 ? ['x', 'y'] : ['y', 'x']) {
          const row = await tables.sessions.lock(id);
          await tables.sessions.update(id, { turns: (row?.turns ?? 0) + 1 });
        }
      }),
    );
    const rows = await store().read((tables) => tables.sessions.getMany(['x', 'y']));
    expect(rows.map((row) => row.turns)).toEqual([6, 6]);
  });

  it('reads one snapshot, whatever is written meanwhile', async () => {
    await store().transaction(async (tables) => {
      await tables.tasks.insert(taskRow('a', { refilled: 100 }));
      await tables.tasks.insert(taskRow('b'));
    });
    const move = () =>
      store().transaction(async (tables) => {
        const [a, b] = [await tables.tasks.lock('a'), await tables.tasks.lock('b')];
        await tables.tasks.update('a', { refilled: (a?.refilled ?? 0) - 1 });
        await tables.tasks.update('b', { refilled: (b?.refilled ?? 0) + 1 });
      });
    const look = () =>
      store().read(async (tables) => {
        const a = await tables.tasks.get('a');
        // Another query between the two reads adds round trips to the database, during which other transactions may commit.
        await tables.tasks.countByStatus();
        const b = await tables.tasks.get('b');
        return (a?.refilled ?? 0) + (b?.refilled ?? 0);
      });
    const sums = await times(100, (i) => (i % 2 === 0 ? move().then(() => 100) : look()));
    expect(new Set(sums)).toEqual(new Set([100]));
  });

  it('observes a new duration from several transactions concurrently', async () => {
    await times(30, () => store().transaction((tables) => tables.durations.observe('k', 50)));
    expect(await store().read((tables) => tables.durations.means(['k', 'other']))).toEqual(new Map([['k', 50]]));
  });

  it('keeps the greater cursor when a consumer advances twice concurrently', async () => {
    await times(30, (i) =>
      store().transaction((tables) =>
        tables.results.putConsumer({ consumer: 'c', trainer: null, cursor: 1 + ((i * 7) % 30) }),
      ),
    );
    expect((await store().read((tables) => tables.results.consumer('c')))?.cursor).toBe(30);
  });
}

function cursorRaces(store: () => Store): void {
  it('makes cursors visible in ascending order', async () => {
    const ids = Array.from({ length: 150 }, (_, i) => `s${i}`);
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ids);
      for (const id of ids) await tables.sessions.update(id, { summary: '{}' });
    });
    let done = false;
    const seen: number[] = [];
    const follow = async (): Promise<void> => {
      for (let last = false; !last; ) {
        // The last `append` may end while the page is read. `done` is therefore copied before, so that one more page is read after the last
        // append.
        last = done;
        const page = await store().read((tables) => tables.results.page(seen.at(-1) ?? 0, 1000, null));
        seen.push(...page.map((row) => row.cursor));
      }
    };
    const append = async (): Promise<void> => {
      await times(ids.length, (i) =>
        store().transaction(async (tables) => {
          // Each transaction runs a different number of statements before and after the append, so that the transactions overlap.
          for (let n = 0; n < i % 3; n++) await tables.sessions.get(ids[i] ?? '');
          await tables.results.append(named(ids[i] ?? ''), NO_BLOBS);
          for (let n = 0; n < i % 5; n++) await tables.sessions.update(ids[i] ?? '', { turns: n });
        }),
      );
      done = true;
    };
    await Promise.all([append(), follow()]);
    expect(seen).toHaveLength(ids.length);
    expect(new Set(seen).size).toBe(ids.length);
  });
}

function decisionRaces(store: () => Store): void {
  it('adds one of several concurrent tasks with one id or key, and refuses the others as conflicts', async () => {
    const outcomes = await Promise.allSettled(
      Array.from({ length: 20 }, (_, i) =>
        store().transaction((tables) =>
          tables.tasks.insert(
            i % 2 === 0 ? taskRow('t', { idempotency_key: 'k' }) : taskRow(`t${i}`, { idempotency_key: 'k' }),
          ),
        ),
      ),
    );
    const refused = outcomes.flatMap((one) => (one.status === 'rejected' ? [one.reason] : []));
    expect(refused).toHaveLength(19);
    for (const reason of refused) expect(reason).toMatchObject({ code: 'conflict' });
  });

  it('either refuses or finds a task that is cancelled while it is submitted', async () => {
    await fc.assert(
      fc.asyncProperty(fc.infiniteStream(fc.boolean()), async (firsts) => {
        const prefix = `${Math.random()}`;
        const rounds = await times(20, async (i) => {
          const id = `${prefix}-${i}`;
          const submit = () =>
            store().transaction(async (tables) => {
              if (await tables.tombstones.has(id, 0)) return 'refused';
              await tables.tasks.insert(taskRow(id));
              return 'added';
            });
          const cancel = () =>
            store().transaction(async (tables) => {
              if ((await tables.tasks.lock(id)) !== undefined) return 'found';
              await tables.tombstones.put(id, 10);
              return 'marked';
            });
          const pair = firsts.next().value ? [submit(), cancel()] : [cancel(), submit()];
          return (await Promise.all(pair)).sort().join();
        });
        for (const round of rounds) expect(['added,found', 'marked,refused']).toContain(round);
      }),
      { numRuns: 3 },
    );
  });
}
