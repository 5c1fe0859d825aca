import type { BatchReply } from '@floe-rl/core/schema';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { SqliteStore } from '../../../src/store/index.ts';
import { Caller } from '../call.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { mixed, originOf, rows, rowsOf, StreamBench } from './stream-bench.ts';
import { TornStore } from './torn-store.ts';

let store: TornStore;
let blobs: MemoryBlobs;
let bench: StreamBench;
beforeEach(async () => {
  store = new TornStore(SqliteStore.open(':memory:'));
  blobs = new MemoryBlobs();
  bench = await StreamBench.create({}, { store, blobs });
});
afterEach(async () => {
  await bench.dispose();
  await store.close();
});

it('a server starts no group too many when another server starts a group and ends a group between two counts', async () => {
  await bench.createStream({ source: { kind: 'rows', rows: rows(20) } });
  const [first] = await bench.lease(2);
  if (first === undefined) throw new Error('nothing was leased');
  store.change('before', 'lockStream', async (batches) => {
    const running = await batches.groupOfTask(first.task_id);
    if (running !== undefined) await batches.addGroup({ ...running, group_no: 9, task_id: 'task-of-the-other' });
  });
  store.change('after', 'sizeOf', (batches) => batches.updateGroup('b', originOf(first).group, { state: 'ready' }));
  await bench.running.server.sweep();
  // While no batch is requested, max_staleness 1 permits one batch, which is two groups.
  expect((await bench.view()).progress).toMatchObject({ ready: 1, running: 1 });
});

it('a server hands out no smaller batch while a group that another server had restarted must be repeated', async () => {
  await bench.createStream({ source: { kind: 'rows', rows: rows(2) }, order: { epochs: 1 }, max_staleness: 2 });
  await bench.runAll(mixed);
  const failed = { state: 'rejected', reason: 'few_usable', repeat: 1 } as const;
  for (const when of ['before', 'after'] as const) {
    store.change('before', 'lockStream', (batches) => batches.updateGroup('b', 1, { state: 'running', repeat: 0 }));
    store.change(when, 'openState', (batches) => batches.updateGroup('b', 1, failed));
    expect(await bench.next()).toMatchObject({ batch: null, done: false, progress: { ready: 1 } });
  }
});

it('a server restarts a group that is too old, although it became ready on another server while the request cancelled it', async () => {
  await bench.createStream({ source: { kind: 'rows', rows: rows(9) }, batch_size: 1, max_staleness: 0 });
  await bench.next({ policy_version: '1' });
  expect(await bench.lease(2)).toHaveLength(2);
  store.change('after', 'openState', (batches) => batches.updateGroup('b', 0, { state: 'ready', usable: 2 }));
  const { batch, progress } = await bench.next({ policy_version: '2' });
  expect([batch, progress.ready, progress.running, progress.expired, progress.restarted]).toEqual([null, 0, 0, 1, 0]);
});

it('two servers give different batches to requests that reach them at the same time', async () => {
  const other = new Caller((await bench.bench.server({}, { store, blobs })).server);
  await bench.createStream({ source: { kind: 'rows', rows: rows(8) }, max_staleness: 3 });
  await bench.runAll(mixed);
  const callers = [bench.caller, other, bench.caller];
  const answers = await Promise.all(
    callers.map((caller) => caller.call<BatchReply>('GET', '/rollout/batches/b/next?wait=0')),
  );
  const replies = answers.map(({ body }) => body);
  expect(replies.map(({ batch }) => batch).sort()).toEqual([1, 2, 3]);
  expect(replies.flatMap(rowsOf).sort()).toEqual([0, 1, 2, 3, 4, 5]);
});
