import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { StagePools } from '../../node/src/gateway/node/stage-pools.ts';
import { FloeClient } from '../src/index.ts';
import { NodeApi } from '../src/node-api.ts';
import { ServerList } from '../src/server-list.ts';

const undo: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of undo.splice(0).reverse()) await close();
});

describe('ServerList with URLs', () => {
  it('selects the next replica after each failure, and the first after the last', () => {
    const list = new ServerList('http://a:1, https://b/floe/,http://c:3');
    const seen = [0, 1, 2, 3].map(() => {
      const now = list.current();
      list.moveOn(now);
      return now.origin + now.prefix;
    });
    expect(seen).toEqual(['http://a:1', 'https://b/floe', 'http://c:3', 'http://a:1']);
  });

  it('selects the next replica only once when several calls failed at the same replica', () => {
    const list = new ServerList('http://a:1,http://b:2,http://c:3');
    const first = list.current();
    list.moveOn(first);
    list.moveOn(first);
    expect(list.current().origin).toBe('http://b:2');
  });

  it.each([['nothing'], ['http://a:1,://'], ['ftp://a'], ['']])('rejects %j', (text) => {
    expect(() => new ServerList(text)).toThrow(expect.objectContaining({ code: 'bad_request' }));
  });
});

describe('ServerList with a folder', () => {
  let dir: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-replicas-'));
    undo.push(() => rm(dir, { recursive: true }));
  });

  it('accepts a folder that is created later and ignores files that are still being written', async () => {
    const list = new ServerList(pathToFileURL(join(dir, 'later')).href);
    expect(() => list.current()).toThrow(expect.objectContaining({ code: 'peer_unreachable' }));
    await mkdir(join(dir, 'later'));
    await writeFile(join(dir, 'later', '.1'), 'http://half');
    expect(() => list.current()).toThrow();
    await writeFile(join(dir, 'later', '1'), 'http://a:1\n');
    expect(list.current().origin).toBe('http://a:1');
  });

  it('reads the folder once more when a replica fails, and finds a replica whose URL has changed', async () => {
    await writeFile(join(dir, '1'), 'http://a:1');
    await writeFile(join(dir, '2'), 'http://b:2');
    const list = new ServerList(pathToFileURL(dir).href);
    await writeFile(join(dir, '1'), 'http://moved:1');
    list.moveOn(list.current());
    expect(list.current().origin).toBe('http://b:2');
    list.moveOn(list.current());
    expect(list.current().origin).toBe('http://moved:1');
    await rm(join(dir, '2'));
    list.moveOn(list.current());
    expect(list.current().origin).toBe('http://moved:1');
  });
});

describe('ServerList with a folder that cannot be read temporarily', () => {
  it('keeps the replicas that it has read before', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'floe-replicas-'));
    undo.push(() => rm(dir, { recursive: true }));
    await writeFile(join(dir, '1'), 'http://a:1');
    await writeFile(join(dir, '2'), 'http://b:2');
    const list = new ServerList(pathToFileURL(dir).href);
    // Each file of the folder contains the URL of one server replica. A folder in place of such a file makes reading fail, as EIO or EACCES
    // would.
    await mkdir(join(dir, '3'));
    list.moveOn(list.current());
    expect(list.current().origin).toBe('http://b:2');
    expect(() => new ServerList(pathToFileURL(dir).href)).toThrow(
      expect.objectContaining({ code: 'peer_unreachable' }),
    );
  });
});

describe('FloeClient with several replicas', () => {
  async function replica(listener: RequestListener): Promise<string> {
    const server = createServer(listener).listen(0, '127.0.0.1');
    await once(server, 'listening');
    undo.push(async () => {
      server.close();
      server.closeAllConnections();
    });
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }
  /** URL at which no server runs: port 9 is the discard service, which is not active on test machines. */
  const DOWN = 'http://127.0.0.1:9';
  function openClient(...urls: string[]): FloeClient {
    const client = new FloeClient({ url: urls.join(',') });
    undo.push(() => client.close());
    return client;
  }
  const submitted = JSON.stringify({ task_id: 't', status: 'running', session_ids: [], duplicate: false });
  const unavailable = JSON.stringify({
    error: { code: 'store_unavailable', message: 'disk full', details: {}, retryable: true },
  });
  const task = { instruction: 'x', agent: { harness: 'shell' as const, custom_shell: 'true' } };

  it('calls the next replica when one is down, and keeps using it', async () => {
    let calls = 0;
    const up = await replica((_, response) => {
      calls++;
      response.end(submitted);
    });
    const client = openClient(DOWN, up);
    await client.submit(task);
    await client.submit(task);
    expect(calls).toBe(2);
    await expect(openClient(DOWN, DOWN).status()).rejects.toMatchObject({ code: 'peer_unreachable' });
  });

  it.each([
    ['store_unavailable', (response: ServerResponse) => response.writeHead(503).end(unavailable)],
    ['peer_unreachable', (response: ServerResponse) => response.destroy()],
  ])('sends a submission that may have been accepted (%s) to the next replica with the same key', async (_, fail) => {
    const names: unknown[] = [];
    const keep = async (request: IncomingMessage) => {
      const { task_id, idempotency_key } = JSON.parse(await text(request));
      names.push([task_id, idempotency_key]);
    };
    const fails = await replica((request, response) => void keep(request).then(() => fail(response)));
    const up = await replica((request, response) => void keep(request).then(() => response.end(submitted)));
    expect(await openClient(fails, up).submit(task)).toMatchObject({ task_id: 't' });
    expect(await openClient(fails, up).submit({ ...task, task_id: 't' })).toMatchObject({ task_id: 't' });
    const fresh = [undefined, expect.stringMatching(/^client-[0-9a-f-]{36}$/)];
    expect(names).toEqual([fresh, names[0], ['t', undefined], ['t', undefined]]);
  });

  it('calls the next replica when one does not reply to a heartbeat', async () => {
    let hanging = 0;
    const hangs = await replica(() => {
      hanging++;
    });
    const up = await replica((_, response) => response.end('{"stop":[],"draining":false,"engines":null}'));
    const node = new NodeApi({ url: [hangs, up].join(','), nodeId: 'node' });
    undo.push(() => node.close());
    const beat = {
      metrics: new StagePools({ init: 1, ready: 1, run: 1, postrun: 1 }).metrics(),
      refuses: null,
      sessions: [],
      engines: { revision: 0, heard: 0, info: [], problems: [], unpaused: [] },
      wait_seconds: 0.1,
    };
    const startedMs = performance.now();
    expect(await node.heartbeat(beat, undefined, 0.2)).toMatchObject({ stop: [] });
    expect(performance.now() - startedMs).toBeGreaterThan(290);
    await node.heartbeat(beat, undefined, 0.2);
    expect(hanging).toBe(1);
  });

  it('throws an error that is not transient without calling another replica', async () => {
    let others = 0;
    const refuses = await replica((_, response) => {
      const error = { code: 'conflict', message: 'taken', details: {}, retryable: false };
      response.writeHead(409).end(JSON.stringify({ error }));
    });
    const other = await replica((_, response) => {
      others++;
      response.end(submitted);
    });
    await expect(openClient(refuses, other).submit(task)).rejects.toMatchObject({ code: 'conflict' });
    expect(others).toBe(0);
  });

  it('continues the results at the next replica after an interruption', async () => {
    const received: string[] = [];
    const lines = (from: number, to: number): string => {
      const cursors = Array.from({ length: to - from + 1 }, (_, index) => from + index);
      return cursors.map((cursor) => `{"cursor":${cursor}}\n`).join('');
    };
    const breaks = await replica((request, response) => {
      response.writeHead(200, { 'content-length': '10000' });
      response.write(lines(1, 2), () => request.socket.destroySoon());
    });
    const up = await replica((request, response) => {
      received.push(new URL(request.url ?? '', 'http://x').searchParams.get('after') ?? '');
      response.end(received.length === 1 ? lines(3, 4) : '');
    });
    const cursors: unknown[] = [];
    for await (const result of openClient(breaks, up).results({ follow: false })) cursors.push(result.cursor);
    expect(cursors).toEqual([1, 2, 3, 4]);
    expect(received).toEqual(['2', '4']);
  });
});
