import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { VirtualClock } from '@floe-rl/core';
import { afterEach, describe, expect, it } from 'vitest';
import { Caller } from '../../server/test/rollout/call.ts';
import { type Running, summaryOf, task, Workbench } from '../../server/test/rollout/workbench.ts';
import { FloeClient } from '../src/index.ts';

const undo: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of undo.splice(0).reverse()) await close();
});

async function stub(listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await once(server, 'listening');
  undo.push(async () => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function openClient(url: string, retrySeconds: number, clock?: VirtualClock): FloeClient {
  const client = new FloeClient({ url, retrySeconds, clock });
  undo.push(() => client.close());
  return client;
}

/**
 * A clock on which time passes only during the pauses between retries, which are the timers of at most 5 s. Requests take no time on it,
 * however slow they are.
 */
class PauseClock extends VirtualClock {
  override schedule(delayMs: number, callback: () => void): () => void {
    const cancel = super.schedule(delayMs, callback);
    if (delayMs <= 5000) setImmediate(() => this.advance(delayMs));
    return cancel;
  }
}

async function finish(running: Running, samples: number): Promise<void> {
  const caller = new Caller(running.server);
  await caller.register('n1');
  await caller.submit(task({ num_samples: samples }));
  for (const lease of await caller.lease('n1', samples)) await caller.deliver('n1', summaryOf(lease));
}

describe('FloeClient with retrySeconds', () => {
  it('delivers every result to a consumer across a restart of the server', async () => {
    const bench = await Workbench.create();
    undo.push(() => bench.dispose());
    const first = await bench.server();
    const url = await first.listen();
    await finish(first, 3);
    const client = openClient(url, 60);
    const seen: (number | undefined)[] = [];
    const results = client.results({ consumer: 'trainer-1' });
    for (let i = 0; i < 3; i++) seen.push((await results.next()).value?.cursor);
    // Requests a result that does not exist yet, so that the request is waiting when the server stops.
    const next = results.next();
    await first.close();
    const second = await bench.server({ port: Number(new URL(url).port) });
    await second.listen();
    await finish(second, 2);
    seen.push((await next).value?.cursor, (await results.next()).value?.cursor);
    expect(seen).toEqual([1, 2, 3, 4, 5]);
    await results.return(undefined);

    // A trainer that restarts with the same consumer name continues after the results that it has acknowledged.
    const afterRestart: (number | undefined)[] = [];
    for await (const result of client.results({ consumer: 'trainer-1', follow: false }))
      afterRestart.push(result.cursor);
    // The fifth result was not acknowledged, so it is sent once more. The fourth may have been acknowledged by the request for the next
    // page, so it is not checked.
    expect(afterRestart.filter((cursor) => cursor !== 4)).toEqual([5]);
    for await (const result of client.results({ consumer: 'trainer-1', follow: false }))
      afterRestart.push(result.cursor);
    expect(afterRestart.filter((cursor) => cursor !== 4)).toEqual([5]);
  });

  it('continues an interrupted page after its last complete result', async () => {
    const requests: string[] = [];
    const url = await stub((request, response) => {
      requests.push(request.url ?? '');
      const after = Number(new URL(request.url ?? '', 'http://x').searchParams.get('after') ?? 0);
      response.writeHead(200, { 'content-type': 'application/x-ndjson' });
      const lines = [1, 2, 3].filter((cursor) => cursor > after).map((cursor) => `{"cursor":${cursor}}\n`);
      if (requests.length > 1) response.end(lines.join(''));
      else response.write(`${lines[0]}{"cursor":2`, () => request.socket.destroy());
    });
    const seen: (number | undefined)[] = [];
    for await (const result of openClient(url, 60).results({ follow: false })) seen.push(result.cursor);
    expect(seen).toEqual([1, 2, 3]);
    expect(requests.map((one) => new URL(one, 'http://x').searchParams.get('after'))).toEqual([null, '1', '3']);
  });

  it('repeats a submission with the same idempotency key, which is generated when the task has none', async () => {
    const keys: unknown[] = [];
    const url = await stub(async (request, response) => {
      let body = '';
      for await (const chunk of request) body += String(chunk);
      keys.push(JSON.parse(body).idempotency_key);
      if (keys.length % 2 === 1) request.socket.destroy();
      else response.end('{"task_id":"t","status":"running","session_ids":[],"duplicate":true}');
    });
    const client = openClient(url, 60);
    await client.submit(task());
    await client.submit(task({ idempotency_key: 'mine' }));
    expect(keys[0]).toMatch(/^client-[0-9a-f-]{36}$/);
    expect(keys).toEqual([keys[0], keys[0], 'mine', 'mine']);
  });

  it.each([
    [503, 'not_ready', 3],
    [429, 'overloaded', 3],
    [404, 'not_found', 1],
    [500, 'internal', 1],
  ])('sends a call that gets status %i (%s) %i times', async (status, code, times) => {
    let requests = 0;
    const url = await stub((_, response) => {
      if (++requests === 3) response.end('{"tasks":[]}');
      else
        response.writeHead(status).end(JSON.stringify({ error: { code, message: 'm', details: {}, retryable: true } }));
    });
    const reply = openClient(url, 60).tasks();
    if (times === 3) expect(await reply).toEqual([]);
    else await expect(reply).rejects.toMatchObject({ code });
    expect(requests).toBe(times);
  });

  it('repeats calls to an unreachable server until the retry time is over, and repeats none without a retry time', async () => {
    const clock = new PauseClock();
    let requests = 0;
    const url = await stub((request) => {
      requests++;
      request.socket.destroy();
    });
    await expect(openClient(url, 0).status()).rejects.toMatchObject({ code: 'peer_unreachable' });
    expect(requests).toBe(1);
    await expect(openClient(url, 60, clock).status()).rejects.toMatchObject({ code: 'peer_unreachable' });
    expect(clock.monotonicMs()).toBe(60_000);
    // The pauses between retries grow up to 5 s, so the 60 s of `retrySeconds` allow between 10 and 40 requests.
    expect(requests).toBeGreaterThan(10);
    expect(requests).toBeLessThan(40);
  });

  it('rejects a call that waits to be repeated when the client is closed', async () => {
    const client = openClient('http://127.0.0.1:9', 3600);
    const reply = client.status();
    await new Promise(setImmediate);
    await client.close();
    await expect(reply).rejects.toMatchObject({ code: 'peer_unreachable' });
  });
});
