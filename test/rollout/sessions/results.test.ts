import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
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

/** Runs a task of `samples` sessions until it ends, and returns the session ids in the order of their results. */
async function finish(samples: number): Promise<string[]> {
  await caller.submit(task({ num_samples: samples }));
  const leases = await caller.lease('n1', samples);
  for (const lease of leases.reverse()) await caller.deliver('n1', summaryOf(lease));
  return leases.map((lease) => lease.session_id);
}

type Page = { results: SessionResult[]; next_cursor: number };

describe('results', () => {
  it('are read page by page, from any cursor, without gap or repetition', async () => {
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

  it('contain the bytes of the trajectory as delivered, as JSON and as lines', async () => {
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

  it('contain null for a session without a trajectory, which has no bytes to fetch', async () => {
    const { session_ids } = await caller.submit(task());
    await caller.call('DELETE', `/sessions/${session_ids[0]}`);
    const { body } = await caller.call<Page>('GET', '/rollout/results');
    expect(body.results).toMatchObject([{ outcome: 'cancelled', trajectory: null, cursor: 1 }]);
    expect((await caller.call('GET', `/sessions/${session_ids[0]}/trajectory`)).status).toBe(404);
  });

  it('contain token data only when requested, if the results of one task are read', async () => {
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

  it('fail with a code when a blob is missing, instead of sending half a page', async () => {
    await finish(1);
    await rm(join(bench.directory, 'blobs'), { recursive: true });
    expect(await caller.call('GET', '/rollout/results')).toMatchObject({
      status: 503,
      body: { error: { code: 'store_unavailable', retryable: true } },
    });
  });

  it('wake held requests on two servers over one store', async () => {
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

  it('answer a held heartbeat once when one of its sessions is cancelled', async () => {
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
    // The node is still ending the session. The stop is repeated, but only when the hold time of the heartbeat is over.
    expect(
      (await node.heartbeat({ metrics: METRICS, refuses: null, sessions, engines: null, wait_seconds: 0.05 })).stop,
    ).toEqual(stop);
  });

  it('leave sessions in the queue when a node disconnects while it waits', async () => {
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

  it('answer held requests when the server closes', async () => {
    const node = await running.node();
    const held = [
      node.lease({ slots: 1, wait_seconds: 30 }),
      node.heartbeat({ metrics: METRICS, refuses: null, sessions: [], engines: null, wait_seconds: 9 }),
    ];
    // A third, later request has been answered, so the server now holds the two earlier ones.
    await (await running.client()).status();
    await running.server.close();
    expect(await Promise.all(held)).toEqual([[], { stop: [], draining: false, engines: null }]);
  });
});
