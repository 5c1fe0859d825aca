import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { FloeClient } from '../../src/client/index.ts';
import { VirtualClock } from '../../src/core/virtual-clock.ts';
import { Caller } from '../rollout/call.ts';
import { type Running, summaryOf, task, Workbench } from '../rollout/workbench.ts';

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

function clientOf(url: string, retrySeconds: number, clock?: VirtualClock): FloeClient {
  const client = new FloeClient({ url, retrySeconds, clock });
  undo.push(() => client.close());
  return client;
}

async function finish(running: Running, samples: number): Promise<void> {
  const caller = new Caller(running.server);
  await caller.register('n1');
  await caller.submit(task({ num_samples: samples }));
  for (const lease of await caller.lease('n1', samples)) await caller.deliver('n1', summaryOf(lease));
}

test('a trainer that reads under a name survives a restart of the server, and misses nothing', async () => {
  const bench = await Workbench.create();
  undo.push(() => bench.dispose());
  const first = await bench.server();
  const url = await first.listen();
  await finish(first, 3);
  const client = clientOf(url, 60);
  const seen: (number | undefined)[] = [];
  const results = client.results({ consumer: 'trainer-1' });
  for (let i = 0; i < 3; i++) seen.push((await results.next()).value?.cursor);
  // Asks for what is not there yet, and is still asking when the server goes away.
  const next = results.next();
  await first.close();
  const second = await bench.server({ port: Number(new URL(url).port) });
  await second.listen();
  await finish(second, 2);
  seen.push((await next).value?.cursor, (await results.next()).value?.cursor);
  expect(seen).toEqual([1, 2, 3, 4, 5]);
  await results.return(undefined);

  // A trainer that starts again under the name gets what it had not come past.
  const again: (number | undefined)[] = [];
  for await (const result of client.results({ consumer: 'trainer-1', follow: false })) again.push(result.cursor);
  // The fourth came in a page of its own or not, and was acknowledged or not.
  expect(again.filter((cursor) => cursor !== 4)).toEqual([5]);
  for await (const result of client.results({ consumer: 'trainer-1', follow: false })) again.push(result.cursor);
  expect(again.filter((cursor) => cursor !== 4)).toEqual([5]);
});

test('a page that is cut off is gone on with behind the last whole result', async () => {
  const asked: string[] = [];
  const url = await stub((request, response) => {
    asked.push(request.url ?? '');
    const after = Number(new URL(request.url ?? '', 'http://x').searchParams.get('after') ?? 0);
    response.writeHead(200, { 'content-type': 'application/x-ndjson' });
    const lines = [1, 2, 3].filter((cursor) => cursor > after).map((cursor) => `{"cursor":${cursor}}\n`);
    if (asked.length > 1) response.end(lines.join(''));
    else response.write(`${lines[0]}{"cursor":2`, () => request.socket.destroy());
  });
  const seen: (number | undefined)[] = [];
  for await (const result of clientOf(url, 60).results({ follow: false })) seen.push(result.cursor);
  expect(seen).toEqual([1, 2, 3]);
  expect(asked.map((one) => new URL(one, 'http://x').searchParams.get('after'))).toEqual([null, '1', '3']);
});

test('a submit that is repeated has the same key, and one of its own if it was given none', async () => {
  const keys: unknown[] = [];
  const url = await stub(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += String(chunk);
    keys.push(JSON.parse(body).idempotency_key);
    if (keys.length % 2 === 1) request.socket.destroy();
    else response.end('{"task_id":"t","status":"running","session_ids":[],"duplicate":true}');
  });
  const client = clientOf(url, 60);
  await client.submit(task());
  await client.submit(task({ idempotency_key: 'mine' }));
  expect(keys[0]).toMatch(/^client-[0-9a-f-]{36}$/);
  expect(keys).toEqual([keys[0], keys[0], 'mine', 'mine']);
});

test.each([
  [503, 'not_ready', 3],
  [429, 'overloaded', 3],
  [404, 'not_found', 1],
  [500, 'internal', 1],
])('status %i %s is asked %i times in all', async (status, code, times) => {
  let asked = 0;
  const url = await stub((_, response) => {
    if (++asked === 3) response.end('{"tasks":[]}');
    else
      response.writeHead(status).end(JSON.stringify({ error: { code, message: 'm', details: {}, retryable: true } }));
  });
  const answer = clientOf(url, 60).tasks();
  if (times === 3) expect(await answer).toEqual([]);
  else await expect(answer).rejects.toMatchObject({ code });
  expect(asked).toBe(times);
});

test('a server that stays away is given up when the time is over, and at once without retries', async () => {
  const clock = new VirtualClock();
  let asked = 0;
  const url = await stub((request) => {
    asked++;
    request.socket.destroy();
  });
  await expect(clientOf(url, 0).status()).rejects.toMatchObject({ code: 'peer_unreachable' });
  expect(asked).toBe(1);
  const answer = clientOf(url, 60, clock).status();
  let done = false;
  const settled = answer.then(
    () => 'answered',
    (error: { code: string }) => {
      done = true;
      return error.code;
    },
  );
  while (!done) {
    clock.advance(1000);
    await new Promise(setImmediate);
  }
  expect(await settled).toBe('peer_unreachable');
  // The pauses grow to five seconds.
  expect(asked).toBeGreaterThan(10);
  expect(asked).toBeLessThan(40);
});

test('closing the client ends a call that is waiting to be repeated', async () => {
  const client = clientOf('http://127.0.0.1:9', 3600);
  const answer = client.status();
  await new Promise(setImmediate);
  await client.close();
  await expect(answer).rejects.toMatchObject({ code: 'peer_unreachable' });
});
