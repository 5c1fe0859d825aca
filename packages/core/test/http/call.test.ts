import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import {
  callHttp,
  callHttpStatus,
  type HttpLimits,
  httpAgent,
  httpPool,
  openHttp,
  openHttpPath,
  quotedReply,
} from '../../src/http/index.ts';
import { systemClock, VirtualClock } from '../../src/index.ts';

const LIMITS: HttpLimits = {
  clock: systemClock,
  limitMs: 60_000,
  late: () => new Error('late'),
  maxBytes: 1_000,
  tooLarge: () => new Error('too large'),
};

describe('bounded HTTP calls', () => {
  let server: Server | null = null;
  afterEach(() => {
    server?.close();
    server?.closeAllConnections();
  });

  async function serve(handle: RequestListener): Promise<string> {
    server = createServer(handle).listen(0, '127.0.0.1');
    await once(server, 'listening');
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  it('resolve with the whole reply, whatever its status', async () => {
    const url = await serve((request, response) => {
      response.writeHead(418, { 'x-method': request.method }).write('{"a":');
      request.pipe(response);
    });
    const options = { method: 'POST', body: '1}', headers: { 'content-type': 'application/json' } } as const;
    const reply = await callHttp(url, options, LIMITS);
    expect(reply).toMatchObject({ status: 418, headers: { 'x-method': 'POST' } });
    expect(reply.body.toString()).toBe('{"a":1}');
  });

  it('accept a body of the maximum size, and end a request whose body is larger', async () => {
    let ended: Promise<unknown> | null = null;
    const url = await serve((request, response) => {
      if (request.url === '/fits') response.end('x'.repeat(LIMITS.maxBytes));
      else {
        ended = once(response, 'close');
        response.write('x'.repeat(LIMITS.maxBytes + 1));
      }
    });
    expect((await callHttp(`${url}/fits`, { method: 'GET' }, LIMITS)).body).toHaveLength(LIMITS.maxBytes);
    await expect(callHttp(url, { method: 'GET' }, LIMITS)).rejects.toThrow('too large');
    await ended;
  });

  it.each(['headers', 'body'])('end at their deadline when the %s do not arrive', async (part) => {
    const clock = new VirtualClock();
    const url = await serve((_, response) => {
      if (part === 'body') response.write('x');
      clock.advance(5_000);
    });
    const call = callHttp(url, { method: 'GET' }, { ...LIMITS, clock, limitMs: 5_000 });
    await expect(call).rejects.toThrow('late');
    expect(clock.fireNext()).toBe(false);
  });

  it('end with the reason of their signal, and cancel their deadline', async () => {
    const clock = new VirtualClock();
    const abort = new AbortController();
    const url = await serve(() => abort.abort(new Error('stopped')));
    const call = callHttpStatus(url, { method: 'GET', signal: abort.signal }, { ...LIMITS, clock });
    await expect(call).rejects.toThrow('stopped');
    expect(clock.fireNext()).toBe(false);
  });

  it('resolve with the status alone of a reply that is long or breaks off', async () => {
    const url = await serve((request, response) => {
      response.writeHead(204 + (request.url === '/long' ? 1 : 2));
      response.write('x'.repeat(request.url === '/long' ? 1_000_000 : 10), () => response.destroy());
    });
    expect(await callHttpStatus(`${url}/long`, { method: 'GET' }, LIMITS)).toBe(205);
    expect(await callHttpStatus(`${url}/broken`, { method: 'GET' }, LIMITS)).toBe(206);
  });

  it('do not follow redirects', async () => {
    const url = await serve((_, response) => response.writeHead(302, { location: '/other' }).end());
    expect(await callHttpStatus(url, { method: 'GET' }, LIMITS)).toBe(302);
  });

  it('use the connections of an agent or of a pool, which sends paths as they are', async () => {
    const url = await serve((request, response) => response.end(request.url));
    const agent = httpAgent({ lookup: (_, __, done) => done(null, [{ address: '127.0.0.1', family: 4 }]) });
    const named = url.replace('127.0.0.1', 'floe.invalid');
    const read = async (reply: Awaited<ReturnType<typeof openHttp>>): Promise<string> =>
      (await reply.read(100, LIMITS.tooLarge)).toString();
    expect(await read(await openHttp(`${named}/a`, { method: 'GET', agent }))).toBe('/a');
    await agent.destroy();
    const pool = httpPool(url, { connections: 1 });
    expect(await read(await openHttpPath(pool, '/a/../b', { method: 'GET' }))).toBe('/a/../b');
    await pool.destroy();
  });

  it('are described by the status and the beginning of the body', () => {
    expect(quotedReply(500, 'x'.repeat(1_000))).toBe(`status 500: ${'x'.repeat(200)}`);
  });
});
