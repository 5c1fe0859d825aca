import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { NodeRow, SessionRow, Store, StoreTables } from '../../src/store/index.ts';
import { batchTests } from './store-contract-batches.ts';
import { factTests } from './store-contract-facts.ts';
import { raceTests } from './store-contract-races.ts';
import { tableTests } from './store-contract-tables.ts';
import { AT, addSessions, NO_BLOBS, named, taskRow } from './store-rows.ts';

function claim(tables: StoreTables, limit: number, nowMs = 10): Promise<SessionRow[]> {
  return tables.sessions.claim({
    limit,
    nodeId: 'n1',
    trainer: 'default',
    order: 'fifo',
    nowMs,
    leaseExpiresMs: nowMs + 100,
    updatedAt: AT,
  });
}

/** Defines the tests that every implementation of `Store` must pass. `open` returns an empty store. */
export function describeStore(name: string, open: () => Promise<Store>): void {
  describe(name, () => {
    let store: Store;
    beforeEach(async () => {
      store = await open();
    });
    afterEach(() => store.close());

    transactionTests(() => store);
    queueTests(() => store);
    resultTests(() => store);
    outboxTests(() => store);
    tableTests(() => store);
    batchTests(() => store);
    factTests(() => store);
    raceTests(() => store);
  });
}

function transactionTests(store: () => Store): void {
  it('changes nothing in a transaction whose work throws, and throws the same error', async () => {
    const boom = new Error('boom');
    const failing = store().transaction(async (tables) => {
      await tables.tasks.insert(taskRow('t1'));
      throw boom;
    });
    await expect(failing).rejects.toBe(boom);
    expect(await store().transaction((tables) => tables.tasks.get('t1'))).toBeUndefined();
  });

  it('does not disturb concurrent transactions with a failing one', async () => {
    const outcomes = await Promise.allSettled(
      Array.from({ length: 200 }, (_, i) =>
        store().transaction(async (tables) => {
          await tables.tasks.insert(taskRow(`t${i}`));
          if (i % 3 === 0) throw new Error('boom');
        }),
      ),
    );
    const failed = outcomes.filter((outcome) => outcome.status === 'rejected').length;
    const tasks = await store().transaction((tables) => tables.tasks.list({ status: null, limit: 1000 }));
    expect(failed).toBe(67);
    expect(tasks).toHaveLength(133);
  });

  it('shows transactions to each other only as a whole', async () => {
    await store().transaction((tables) => tables.tasks.insert(taskRow('t1')));
    const add = { sessions: 1, rewardSum: 0.5, rewardCount: 1, usable: 1, inBaseline: 0 };
    await Promise.all(
      Array.from({ length: 100 }, () => store().transaction((tables) => tables.tasks.addEnded('t1', add))),
    );
    const row = await store().transaction((tables) => tables.tasks.get('t1'));
    expect(row).toMatchObject({ completed_sessions: 100, reward_sum: 50, reward_count: 100 });
  });

  it('refuses transactions once it is closed', async () => {
    await store().close();
    await expect(store().transaction((tables) => tables.nodes.list())).rejects.toMatchObject({ code: 'not_ready' });
  });

  it('refuses a used task id or idempotency key as a conflict', async () => {
    await store().transaction((tables) => tables.tasks.insert(taskRow('t1', { idempotency_key: 'k' })));
    for (const row of [taskRow('t1'), taskRow('t2', { idempotency_key: 'k' })]) {
      const insert = store().transaction((tables) => tables.tasks.insert(row));
      await expect(insert).rejects.toMatchObject({ code: 'conflict' });
    }
  });

  it('keeps the greater service time', async () => {
    const advance = (ms: number) => store().transaction((tables) => tables.serviceTime.advance(ms));
    expect(await advance(50)).toBe(50);
    expect(await advance(20)).toBe(50);
    expect(await advance(50.5)).toBe(50.5);
  });
}

function queueTests(store: () => Store): void {
  it('claims by priority, then first in, first out, and never twice', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0', 'a1']);
      await addSessions(tables, 'b', ['b0'], { priority: 5 });
      await addSessions(tables, 'c', ['c0']);
    });
    const first = await store().transaction((tables) => claim(tables, 2));
    const rest = await store().transaction((tables) => claim(tables, 10));
    expect(first.map((row) => row.session_id)).toEqual(['b0', 'a0']);
    expect(rest.map((row) => row.session_id)).toEqual(['a1', 'c0']);
    expect(first[0]).toMatchObject({ status: 'LEASED', node_id: 'n1', lease_expires_ms: 110, attempt: 1, epoch: 1 });
  });

  it('skips a session in back-off until it is due', async () => {
    await store().transaction((tables) => addSessions(tables, 'a', ['late'], { not_before_ms: 50 }));
    expect(await store().transaction((tables) => claim(tables, 1, 49))).toEqual([]);
    expect(await store().transaction((tables) => claim(tables, 1, 50))).toHaveLength(1);
  });

  it('expires a lease unless it is renewed', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0', 'a1']);
      await claim(tables, 2);
      await tables.sessions.renew(['a1'], 500);
    });
    const expired = (nowMs: number) => store().transaction((tables) => tables.sessions.lockExpired(nowMs, 10));
    expect(await expired(109)).toEqual([]);
    expect((await expired(110)).map((row) => row.session_id)).toEqual(['a0']);
    expect(await expired(500)).toHaveLength(2);
    const held = await store().transaction((tables) => tables.sessions.leasedByNode());
    expect([...held]).toEqual([['n1', { count: 2, memoryMb: 200 }]]);
  });

  it('lists cancelled sessions of a node until the mark is cleared', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0']);
      await claim(tables, 1);
      await tables.sessions.update('a0', { cancel_requested: 1, status: 'CANCELLED', lease_expires_ms: null });
    });
    const pending = (nodeId: string) => store().transaction((tables) => tables.sessions.cancelPending(nodeId));
    expect(await pending('n1')).toHaveLength(1);
    expect(await pending('n2')).toEqual([]);
    await store().transaction((tables) => tables.sessions.update('a0', { cancel_requested: 0 }));
    expect(await pending('n1')).toEqual([]);
  });

  it('stores a task of many samples in order', async () => {
    const ids = Array.from({ length: 20_000 }, (_, i) => `s${i}`);
    await store().transaction((tables) => addSessions(tables, 'big', ids));
    expect(await store().transaction((tables) => tables.sessions.idsOfTask('big'))).toEqual(ids);
    expect(await store().read((tables) => tables.sessions.queued())).toMatchObject([{ sessions: 20_000 }]);
    expect([...(await store().read((tables) => tables.sessions.countStarted()))]).toEqual([]);
  });
}

function resultTests(store: () => Store): void {
  it('assigns cursors in the order of acceptance, and pages from any of them', async () => {
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0', 'a1', 'a2']);
      for (const id of ['a2', 'a0', 'a1']) {
        await tables.sessions.update(id, { summary: `{"session_id":"${id}"}`, status: 'COMPLETED' });
        await tables.results.append(named(id), NO_BLOBS);
      }
    });
    const page = (after: number) => store().transaction((tables) => tables.results.page(after, 2, null));
    const first = await page(0);
    expect(first.map((row) => row.session_id)).toEqual(['a2', 'a0']);
    const second = await page(first[1]?.cursor ?? 0);
    expect(second.map((row) => row.summary)).toEqual(['{"session_id":"a1"}']);
    expect(await store().transaction((tables) => tables.results.newestCursor())).toBe(second[0]?.cursor);
  });

  it('remembers a cursor whose result is no longer kept', async () => {
    expect(await store().read((tables) => tables.results.lastCursor())).toBe(0);
    await store().transaction(async (tables) => {
      await tables.tasks.insert(taskRow('a'));
      await addSessions(tables, 'a', ['a0']);
      await tables.sessions.update('a0', { summary: '{}', status: 'COMPLETED' });
      await tables.results.append(named('a0'), NO_BLOBS);
      await tables.results.collectTasks(['a']);
      await tables.tasks.update('a', { status: 'completed', ended_ms: 1 });
    });
    expect(await store().transaction((tables) => tables.tasks.removeEnded(2, 10))).toEqual({ tasks: 1, sessions: 1 });
    const read = await store().read(async ({ results }) => [await results.newestCursor(), await results.lastCursor()]);
    expect(read).toEqual([0, 1]);
  });

  it('keeps the blobs of a result', async () => {
    const blob = (ref: string, bytes: number) => ({ ref, bytes });
    const blobs = { trajectory: blob('t', 1), completions: null, artifacts: blob('a', 3) };
    await store().transaction(async (tables) => {
      await addSessions(tables, 'a', ['a0']);
      await tables.sessions.update('a0', { summary: '{}', status: 'COMPLETED' });
      await tables.results.append(named('a0'), blobs);
    });
    expect(await store().transaction((tables) => tables.results.ofSession('a0'))).toMatchObject({
      ...{ trajectory_ref: 't', trajectory_bytes: 1, completions_ref: null, completions_bytes: 0 },
      ...{ artifacts_ref: 'a', artifacts_bytes: 3 },
    });
  });

  it('keeps only one result of a session', async () => {
    const append = () => store().transaction((tables) => tables.results.append(named('s'), NO_BLOBS));
    await append();
    await expect(append()).rejects.toThrow();
    expect(await store().transaction((tables) => tables.results.newestCursor())).toBe(1);
  });

  it('keeps deliveries by session and epoch', async () => {
    const row = {
      session_id: 's',
      epoch: 2,
      kind: 'result' as const,
      digest: 'abc',
      summary: '{}',
      trajectory_ref: null,
      completions_ref: null,
      artifacts_ref: 'def',
      delivered_at: AT,
    };
    await store().transaction((tables) => tables.results.addDelivery(row));
    expect(await store().transaction((tables) => tables.results.delivery('s', 2))).toEqual(row);
    expect(await store().transaction((tables) => tables.results.delivery('s', 1))).toBeUndefined();
  });
}

function outboxTests(store: () => Store): void {
  it('lists a callback as due until it is delivered', async () => {
    const row = { task_id: 't', url: 'http://x', tries: 0, next_try_ms: 5, last_error: null, delivered_at: null };
    await store().transaction((tables) => tables.callbacks.insert(row));
    const due = (nowMs: number) => store().transaction((tables) => tables.callbacks.claimDue(nowMs, 10, nowMs));
    expect(await due(4)).toEqual([]);
    expect(await due(5)).toEqual([row]);
    await store().transaction((tables) => tables.callbacks.update('t', { delivered_at: AT }));
    expect(await due(5)).toEqual([]);
    expect(await store().transaction((tables) => tables.callbacks.countUndelivered())).toBe(0);
  });

  it('expires a tombstone', async () => {
    await store().transaction((tables) => tables.tombstones.put('t', 300));
    const has = (nowMs: number) => store().transaction((tables) => tables.tombstones.has('t', nowMs));
    expect(await has(299)).toBe(true);
    expect(await has(300)).toBe(false);
    await store().transaction((tables) => tables.tombstones.removeExpired(300));
    expect(await has(0)).toBe(false);
  });

  it('replaces a node with its next registration, and removes it', async () => {
    const row = {
      node_id: 'n',
      instance: 'i',
      takeovers: 0,
      registration: '{}',
      metrics: '{}',
      engines: null,
      refuses: null,
      claims: null,
      draining: 1,
      last_seen_ms: 1,
      registered_at: AT,
      last_heartbeat: AT,
    };
    await store().transaction((tables) => tables.nodes.put(row));
    await store().transaction((tables) => tables.nodes.put({ ...row, draining: 0 }));
    expect(await store().transaction((tables) => tables.nodes.list())).toEqual([{ ...row, draining: 0 }]);
    await store().transaction((tables) => tables.nodes.remove('n'));
    expect(await store().transaction((tables) => tables.nodes.get('n'))).toBeUndefined();
  });

  it('stores the state of the engines of each node apart from its row, and removes it with the node', async () => {
    const infos = () => store().read(({ nodes }) => nodes.engineInfo());
    await store().transaction(async ({ nodes }) => {
      await nodes.putEngineInfo('a', '[1]');
      await nodes.putEngineInfo('b', '[2]');
    });
    await store().transaction(({ nodes }) => nodes.putEngineInfo('a', '[3]'));
    expect(await infos()).toEqual(
      new Map([
        ['a', '[3]'],
        ['b', '[2]'],
      ]),
    );
    await store().transaction(({ nodes }) => nodes.remove('a'));
    expect(await infos()).toEqual(new Map([['b', '[2]']]));
  });

  it('finds the nodes that are drained, and whether another node accepts sessions', async () => {
    const node = (node_id: string, fields: Partial<NodeRow> = {}): NodeRow => ({
      ...{ node_id, instance: 'i', takeovers: 0, registration: '{}', metrics: '{}', engines: null, draining: 0 },
      ...{ refuses: null, claims: null, last_seen_ms: 10, registered_at: AT, last_heartbeat: AT },
      ...fields,
    });
    const put = (row: NodeRow) => store().transaction(({ nodes }) => nodes.put(row));
    const hasOther = (id: string, sinceMs = 10) => store().read(({ nodes }) => nodes.hasOther(id, sinceMs));
    await put(node('a'));
    await put(node('drained', { draining: 1 }));
    await put(node('full disk', { refuses: 'the disk is full' }));
    expect((await store().read(({ nodes }) => nodes.draining())).map((row) => row.node_id)).toEqual(['drained']);
    expect(await hasOther('a')).toBe(false);
    expect(await hasOther('b')).toBe(true);
    expect(await hasOther('b', 10.5)).toBe(false);
  });
}
