import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { SessionResult } from '../../../src/schema/index.ts';
import { Caller } from '../call.ts';
import { METRICS, type Running, summaryOf, TRAJECTORY, task, Workbench } from '../workbench.ts';

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

/** Runs a task to its end and returns its session ids in the order of their results. */
async function finish(samples: number): Promise<string[]> {
  await caller.submit(task({ num_samples: samples }));
  const leases = await caller.lease('n1', samples);
  for (const lease of leases.reverse()) await caller.deliver('n1', summaryOf(lease));
  return leases.map((lease) => lease.session_id);
}

type Page = { results: SessionResult[]; next_cursor: number };

test('results are read page by page, from any cursor, without gap or repeat', async () => {
  const ids = await finish(7);
  const seen: string[] = [];
  let cursor = 0;
  for (;;) {
    const { body } = await caller.call<Page>('GET', `/rollout/results?after=${cursor}&limit=3`);
    if (body.results.length === 0) break;
    seen.push(...body.results.map((result) => result.session_id));
    cursor = body.next_cursor;
  }
  expect(seen).toEqual(ids);
  expect((await caller.call<Page>('GET', '/rollout/results?after=5')).body.results).toHaveLength(2);
  expect((await caller.call<Page>('GET', '/rollout/results?after=7')).body).toEqual({ results: [], next_cursor: 7 });
});

test('a trajectory goes out with the bytes it came in with, as JSON and as lines', async () => {
  await finish(2);
  for (const accept of ['application/json', 'application/x-ndjson']) {
    const reply = await running.server.app.inject({ url: '/rollout/results', headers: { accept } });
    expect(reply.headers['content-type']).toContain(accept);
    expect(reply.payload.split(`"trajectory":${TRAJECTORY}}`)).toHaveLength(3);
  }
  const lines = await running.server.app.inject({
    url: '/rollout/results',
    headers: { accept: 'application/x-ndjson' },
  });
  const parsed = lines.payload
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as SessionResult);
  expect(parsed.map((result) => result.cursor)).toEqual([1, 2]);
  expect(lines.headers['x-next-cursor']).toBe('2');
});

test('a session without a trajectory has null there, and no bytes to fetch', async () => {
  const { session_ids } = await caller.submit(task());
  await caller.call('DELETE', `/sessions/${session_ids[0]}`);
  const { body } = await caller.call<Page>('GET', '/rollout/results');
  expect(body.results).toMatchObject([{ outcome: 'cancelled', trajectory: null, cursor: 1 }]);
  expect((await caller.call('GET', `/sessions/${session_ids[0]}/trajectory`)).status).toBe(404);
});

test('a task comes with token data only when asked', async () => {
  const { task_id } = await caller.submit(task());
  const [lease] = await caller.lease('n1');
  if (lease === undefined) throw new Error('a session was queued');
  await caller.deliver('n1', summaryOf(lease));
  const brief = await caller.call<Page>('GET', `/rollout/task/${task_id}`);
  const full = await caller.call<Page>('GET', `/rollout/task/${task_id}?results=full`);
  expect(brief.body.results[0]).not.toHaveProperty('trajectory');
  expect(full.body.results[0]?.trajectory).toEqual(JSON.parse(TRAJECTORY.toString()));
  expect({ ...full.body, results: [] }).toEqual({ ...brief.body, results: [] });
});

test('a blob that is gone fails the request with a code instead of sending half a page', async () => {
  await finish(1);
  await rm(join(bench.directory, 'blobs'), { recursive: true });
  expect(await caller.call('GET', '/rollout/results')).toMatchObject({
    status: 503,
    body: { error: { code: 'store_unavailable', retryable: true } },
  });
});

test('held requests on two servers over one store wake up', async () => {
  const { store, blobs } = await bench.open();
  const [first, second] = [await bench.server({}, { store, blobs }), await bench.server({}, { store, blobs })];
  const client = await first.client();
  const node = await second.node();
  const leasing = node.lease({ slots: 1, wait_seconds: 20 });
  const reading = (async () => {
    for await (const result of client.results()) return result.session_id;
    return null;
  })();
  const { session_ids } = await client.submit(task());
  const [lease] = await leasing;
  expect(lease?.session_id).toBe(session_ids[0]);
  if (lease === undefined) return;
  await node.deliverResult({ summary: summaryOf(lease), trajectory: null, completions: null, artifacts: null });
  expect(await reading).toBe(lease.session_id);
});

test('a held heartbeat is answered when one of its sessions is cancelled, once', async () => {
  const client = await running.client();
  const node = await running.node();
  await client.submit(task());
  const [lease] = await node.lease({ slots: 1, wait_seconds: 0 });
  if (lease === undefined) throw new Error('a session was queued');
  const sessions = [
    { session_id: lease.session_id, epoch: lease.epoch, status: 'RUNNING' as const, turns: 1, sampled_tokens: 5 },
  ];
  const held = node.heartbeat({ metrics: METRICS, refuses: null, sessions, engines: null, wait_seconds: 20 });
  await client.cancelSession(lease.session_id);
  const stop = [{ session_id: lease.session_id, epoch: 1, reason: 'cancelled' }];
  expect((await held).stop).toEqual(stop);
  // The node is still ending it: it is told again, but only when the wait is over.
  expect(
    (await node.heartbeat({ metrics: METRICS, refuses: null, sessions, engines: null, wait_seconds: 0.05 })).stop,
  ).toEqual(stop);
});

test('a node that hangs up while it waits takes no session with it', async () => {
  const client = await running.client();
  const node = await running.node();
  const controller = new AbortController();
  const gone = new Error('the node died');
  const waiting = node.lease({ slots: 1, wait_seconds: 20 }, controller.signal);
  controller.abort(gone);
  await expect(waiting).rejects.toBe(gone);
  await client.submit(task());
  const [lease] = await node.lease({ slots: 1, wait_seconds: 20 });
  expect(lease?.attempt).toBe(1);
});

test('closing the server answers the requests that it holds', async () => {
  const node = await running.node();
  const held = [
    node.lease({ slots: 1, wait_seconds: 30 }),
    node.heartbeat({ metrics: METRICS, refuses: null, sessions: [], engines: null, wait_seconds: 9 }),
  ];
  // Both requests are in the server once a third one, sent after them, has been answered.
  await (await running.client()).status();
  await running.server.close();
  expect(await Promise.all(held)).toEqual([[], { stop: [], draining: false, engines: null }]);
});
