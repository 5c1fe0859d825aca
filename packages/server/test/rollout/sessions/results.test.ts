import { createHash } from 'node:crypto';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { SessionResult } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
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

/**
 * Runs a task of `samples` sessions until it ends, and returns the session ids in the order of their results. `trajectoryOf` takes the
 * position of a result in that order and returns its trajectory.
 */
async function finish(samples: number, trajectoryOf = (_index: number): Buffer => TRAJECTORY): Promise<string[]> {
  await caller.submit(task({ num_samples: samples }));
  const leases = await caller.lease('n1', samples);
  for (const [i, lease] of leases.reverse().entries()) await caller.deliver('n1', summaryOf(lease), trajectoryOf(i));
  return leases.map((lease) => lease.session_id);
}

/** Returns the file in which the blob store of the test keeps these bytes. */
function fileOf(bytes: Buffer): string {
  const ref = createHash('sha256').update(bytes).digest('hex');
  return join(bench.directory, 'blobs', ref.slice(0, 2), ref);
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

  it('fail with a code when the blob directory is missing, instead of sending half a page', async () => {
    await finish(1);
    await rm(join(bench.directory, 'blobs'), { recursive: true });
    expect(await caller.call('GET', '/rollout/results')).toMatchObject({
      status: 503,
      body: { error: { code: 'store_unavailable', retryable: true } },
    });
  });

  it.each([
    ['damaged', (file: string) => writeFile(file, 'other bytes')],
    ['missing', (file: string) => rm(file)],
  ])('contain a result whose trajectory is %s without it, and the results after it', async (_, harm) => {
    const logged: object[] = [];
    const log = { info: () => {}, warn: () => {}, error: (fields: object) => void logged.push(fields) };
    const { store, blobs } = await bench.open();
    const server = await bench.server({}, { store, blobs, log });
    const client = new Caller(server.server);
    const trajectoryOf = (index: number): Buffer => Buffer.from(`{"status":"COMPLETED","traces":[${index}]}`);
    const [, damaged] = await finish(3, trajectoryOf);
    await harm(fileOf(trajectoryOf(1)));
    for (const reading of ['/rollout/results', '/rollout/results?peek=true']) {
      const { status, body } = await client.call<Page>('GET', reading);
      expect(status).toBe(200);
      expect(body.next_cursor).toBe(3);
      expect(body.results.map(({ trajectory, unusable }) => [trajectory !== null, unusable])).toEqual([
        [true, null],
        [false, 'corrupt_record'],
        [true, null],
      ]);
      expect(body.results[1]).toMatchObject({
        session_id: damaged,
        outcome: 'completed',
        error: { code: 'corrupt_record', details: { session_error: null } },
      });
      // The first read of the damaged trajectory is logged and counted, and the second read is not.
      expect(logged).toMatchObject([{ session_id: damaged, cursor: 2 }]);
    }
    const { body: status } = await client.call<{ counters: Record<string, number> }>('GET', '/rollout/status');
    expect(status.counters.corrupt_records).toBe(1);
    const part = await client.call('GET', `/sessions/${damaged}/trajectory`);
    expect(part).toMatchObject({ status: 500, body: { error: { code: 'corrupt_record', retryable: false } } });
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
    // The node lists the cancelled session a second time because it is still ending it. The order to stop is repeated, but only once the
    // hold time of the heartbeat has passed.
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
    // The answer to this later request shows that the server has received the two earlier requests and holds them.
    await (await running.client()).status();
    await running.server.close();
    expect(await Promise.all(held)).toEqual([[], { stop: [], draining: false, engines: null }]);
  });
});
