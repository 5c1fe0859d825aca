import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { VirtualClock } from '@floe-rl/core';
import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import { summaryOf, TRAJECTORY, task, Workbench } from '../../server/test/rollout/workbench.ts';
import { linesOf } from '../src/connection.ts';
import { FloeClient } from '../src/index.ts';
import { NodeApi } from '../src/node-api.ts';

const undo: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of undo.splice(0).reverse()) await close();
});

async function workbench(): Promise<Workbench> {
  const bench = await Workbench.create();
  undo.push(() => bench.dispose());
  return bench;
}

async function stub(listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await once(server, 'listening');
  undo.push(async () => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function openClient(url: string): FloeClient {
  const client = new FloeClient({ url });
  undo.push(() => client.close());
  return client;
}

describe('FloeClient', () => {
  it('ends a call whose error reply has no end', async () => {
    const url = await stub((_, response) => {
      const part = 'x'.repeat(1024 * 1024);
      const write = (): void => {
        while (!response.destroyed && response.write(part));
      };
      response.writeHead(500).on('drain', write);
      write();
    });
    await expect(openClient(url).status()).rejects.toMatchObject({
      code: 'peer_unreachable',
      message: expect.stringContaining('its error reply exceeds 16777216 bytes'),
    });
  });

  it("throws the server's error with its code, details and retryability", async () => {
    const client = await (await (await workbench()).server()).client();
    await expect(client.task('nope')).rejects.toMatchObject({
      code: 'not_found',
      retryable: false,
      details: { task_id: 'nope' },
    });
    await expect(client.submit({ ...task(), num_samples: 0 })).rejects.toMatchObject({
      code: 'schema_violation',
      details: { issues: [{ path: 'num_samples' }] },
    });
  });

  it('throws peer_unreachable when the server is down or closes the connection', async () => {
    const running = await (await workbench()).server();
    const url = await running.listen();
    await running.close();
    await expect(openClient(url).status()).rejects.toMatchObject({ code: 'peer_unreachable', retryable: true });
    const hangsUp = await stub((request) => request.socket.destroy());
    await expect(openClient(hangsUp).submit(task())).rejects.toMatchObject({ code: 'peer_unreachable' });
    const halfway = await stub((_, response) => {
      response.writeHead(200, { 'content-length': '100' });
      response.write('{"half":');
      response.socket?.end();
    });
    await expect(openClient(halfway).status()).rejects.toMatchObject({ code: 'peer_unreachable' });
  });

  it('throws peer_unreachable when the server does not reply in time', async () => {
    const clock = new VirtualClock();
    let arrived = (): void => {};
    const received = new Promise<void>((resolve) => {
      arrived = resolve;
    });
    const client = new FloeClient({ url: await stub(() => arrived()), clock });
    const reply = client.status();
    await received;
    clock.advance(30_000);
    await expect(reply).rejects.toMatchObject({ code: 'peer_unreachable' });
    await client.close();
  });

  it.each([
    [502, '<html>bad gateway</html>', 'peer_unreachable'],
    [404, 'nothing here', 'not_found'],
    [400, '{"error":"text"}', 'bad_request'],
    [500, '{"error":{"code":"from_the_future","message":"m","details":{},"retryable":true}}', 'peer_unreachable'],
  ])('turns a reply from something other than floe (%i %s) into %s', async (status, body, code) => {
    const url = await stub((_, response) => response.writeHead(status).end(body));
    await expect(openClient(url).status()).rejects.toMatchObject({ code });
  });

  it('rejects a reply that does not match the schema', async () => {
    const url = await stub((_, response) => response.end('{"task_id":"t"}'));
    await expect(openClient(url).submit(task())).rejects.toMatchObject({ code: 'schema_violation' });
  });

  it('rejects an invalid URL', () => {
    expect(() => new FloeClient({ url: 'not a url' })).toThrow(expect.objectContaining({ code: 'bad_request' }));
  });

  it('sends the token and the path prefix', async () => {
    const seen: string[] = [];
    const url = await stub((request, response) => {
      seen.push(`${request.headers.authorization} ${request.url}`);
      response.end('{"tasks":[]}');
    });
    const client = new FloeClient({ url: `${url}/prefix/`, token: 'secret' });
    await client.tasks({ status: 'running' });
    await client.close();
    expect(seen).toEqual(['Bearer secret /prefix/tasks?status=running']);
  });

  it('reads results across pages, from any cursor, and until its signal aborts', async () => {
    const running = await (await workbench()).server();
    const client = await running.client();
    const node = await running.node();
    await client.submit(task({ num_samples: 5 }));
    for (const lease of await node.lease({ slots: 5, wait_seconds: 0 })) {
      await node.deliverResult({
        summary: summaryOf(lease),
        trajectory: TRAJECTORY,
        completions: null,
        artifacts: null,
      });
    }
    const cursors = async (after: number) => {
      const seen: (number | undefined)[] = [];
      for await (const result of client.results({ after, pageSize: 2, follow: false })) seen.push(result.cursor);
      return seen;
    };
    expect(await cursors(0)).toEqual([1, 2, 3, 4, 5]);
    expect(await cursors(3)).toEqual([4, 5]);
    const controller = new AbortController();
    const stop = new Error('enough');
    const following = (async () => {
      for await (const result of client.results({ signal: controller.signal })) {
        if (result.cursor === 5) controller.abort(stop);
      }
    })();
    await expect(following).rejects.toBe(stop);
  });
});

describe('NodeApi', () => {
  it('lets a node drain itself', async () => {
    const running = await (await workbench()).server();
    const node = await running.node('n9');
    expect((await node.drain()).draining).toBe(true);
    const stranger = new NodeApi({ url: await running.listen(), nodeId: 'stranger' });
    await expect(stranger.lease({ slots: 1, wait_seconds: 0 })).rejects.toMatchObject({ code: 'not_found' });
    await stranger.close();
  });
});

describe('linesOf', () => {
  it('yields complete lines however the bytes are split', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.string({ unit: 'grapheme' })),
        fc.infiniteStream(fc.integer({ min: 1, max: 7 })),
        async (texts, sizes) => {
          const lines = texts.map((text) => text.replaceAll('\n', ' '));
          const bytes = Buffer.from(`${lines.map((line) => `${line}\n`).join('')}unfinished`);
          async function* pieces(): AsyncGenerator<Buffer> {
            for (let at = 0; at < bytes.length; ) {
              const size = sizes.next().value as number;
              yield bytes.subarray(at, at + size);
              at += size;
            }
          }
          const seen: string[] = [];
          for await (const line of linesOf(pieces())) seen.push(line);
          expect(seen).toEqual(lines);
        },
      ),
    );
  });
});
