import type { lookup } from 'node:dns';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, request, type Server } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { text } from 'node:stream/consumers';
import { type EgressRules, parseTarget, refusalOf } from '@floe-rl/core';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { EgressProxy, type EgressRequest } from '../../../src/gateway/egress/egress-proxy.ts';

/** Addresses of the names in these tests. All other names do not exist. */
const ADDRESSES: Readonly<Record<string, readonly string[]>> = {
  'site.test': ['127.0.0.1'],
  'inner.test': ['10.1.2.3'],
  'metadata.test': ['169.254.169.254'],
  'mixed.test': ['93.184.216.34', '127.0.0.1'],
  'mapped.test': ['::ffff:127.0.0.1'],
};

const lookupName = ((name: string, _: unknown, done: (error: Error | null, found: unknown) => void) => {
  const addresses = ADDRESSES[name];
  if (addresses === undefined) done(new Error(`${name} does not exist`), []);
  else
    done(
      null,
      addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
    );
}) as unknown as typeof lookup;

describe('refusalOf', () => {
  const allows = (rules: EgressRules, text: string): boolean => {
    const target = parseTarget(text, 443);
    return target !== null && refusalOf(rules, target) === null;
  };

  it.each([
    ['pypi.org', true],
    ['PyPI.org.', true],
    ['pypi.org:80', true],
    ['pypi.org:22', false],
    ['files.pypi.org', false],
    ['evilpypi.org', false],
    ['pypi.org.evil.com', false],
    ['files.pythonhosted.org', true],
    ['a.b.pythonhosted.org', true],
    ['pythonhosted.org', false],
    ['registry.example:5000', true],
    ['registry.example', false],
    ['[2001:4860::1]', true],
  ])('of a list of hosts, for %s allows it: %s', (target, isAllowed) => {
    const node = ['pypi.org', '*.pythonhosted.org', 'registry.example:5000', '[2001:4860::1]'];
    expect(allows({ node, task: null }, target)).toBe(isAllowed);
    expect(allows({ node: null, task: node }, target)).toBe(isAllowed && !target.endsWith(':5000'));
    expect(allows({ node, task: [] }, target)).toBe(false);
  });

  it.each([
    ['', false],
    ['a b:443', false],
    ['user@host:443', false],
    ['host:99999', false],
    ['host/path', false],
    ['[fe80::1%eth0]:443', false],
  ])('refuses %j, which is no host and port', (target, isAllowed) =>
    expect(allows({ node: null, task: null }, target)).toBe(isAllowed),
  );
});

describe('EgressProxy', () => {
  let dir: string;
  let site: Server;
  let port: number;
  let seen: IncomingMessage[] = [];
  const open: EgressProxy[] = [];
  const requests: EgressRequest[] = [];
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'floe-egress-'));
    site = createServer((incoming, response) => {
      seen.push(incoming);
      incoming.pipe(response);
    }).listen(0, '127.0.0.1');
    await once(site, 'listening');
    port = (site.address() as AddressInfo).port;
  });
  afterAll(() => {
    site.close();
    site.closeAllConnections();
    rmSync(dir, { recursive: true, force: true });
  });
  afterEach(async () => {
    for (const proxy of open.splice(0)) await proxy.close();
    seen = [];
    requests.length = 0;
    expect(readdirSync(dir)).toEqual([]);
  });

  async function start(rules: Partial<EgressRules> = {}): Promise<EgressProxy> {
    const proxy = await EgressProxy.open({
      socketPath: join(dir, 's'),
      rules: { node: [`site.test:${port}`], task: null, ...rules },
      onRequest: (one) => requests.push(one),
      lookup: lookupName,
    });
    open.push(proxy);
    return proxy;
  }

  async function get(url: string, body = '', headers: Record<string, string> = {}): Promise<[number, string]> {
    const sent = request({ socketPath: join(dir, 's'), method: 'POST', path: url, headers });
    sent.end(body);
    const [reply] = (await once(sent, 'response')) as [IncomingMessage];
    return [reply.statusCode ?? 0, await text(reply)];
  }

  async function tunnel(target: string): Promise<[number, Duplex]> {
    const sent = request({ socketPath: join(dir, 's'), method: 'CONNECT', path: target }).end();
    const [reply, socket] = (await once(sent, 'connect')) as [IncomingMessage, Duplex];
    return [reply.statusCode ?? 0, socket];
  }

  it('forwards a plain request and its reply without the headers of the connection', async () => {
    const proxy = await start();
    const headers = { 'x-own': '1', 'proxy-authorization': 'secret', 'proxy-connection': 'keep-alive' };
    expect(await get(`http://site.test:${port}/path?q=1`, 'hello', headers)).toEqual([200, 'hello']);
    expect(seen[0]?.url).toBe('/path?q=1');
    expect(seen[0]?.headers).toMatchObject({ host: `site.test:${port}`, 'x-own': '1' });
    expect(Object.keys(seen[0]?.headers ?? {}).filter((name) => name.startsWith('proxy'))).toEqual([]);
    expect(proxy.counts()).toEqual({ allowed: { 'site.test': 1 }, refused: {}, sent_bytes: 5, received_bytes: 5 });
    expect(requests).toEqual([{ target: `site.test:${port}`, refusal: null }]);
  });

  it('carries a tunnel in both directions and counts its bytes', async () => {
    const proxy = await start();
    const [status, socket] = await tunnel(`site.test:${port}`);
    expect(status).toBe(200);
    socket.end('POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi');
    expect(await text(socket)).toMatch(/^HTTP\/1.1 200 OK[\s\S]*hi/);
    await new Promise(setImmediate);
    const { allowed, sent_bytes, received_bytes } = proxy.counts();
    expect(allowed).toEqual({ 'site.test': 1 });
    expect([sent_bytes > 60, received_bytes > 20]).toEqual([true, true]);
  });

  it.each([
    ['a host that the node does not list', ['other.test'], null],
    ['a host that the task does not list', null, ['other.test']],
  ])('refuses %s', async (_, node, task) => {
    const proxy = await start({ ...(node === null ? {} : { node }), task });
    const [status, body] = await get(`http://site.test:${port}/`);
    expect([status, body]).toEqual([403, expect.stringMatching(/^floe: .*does not allow site\.test/)]);
    expect((await tunnel(`site.test:${port}`))[0]).toBe(403);
    expect(proxy.counts()).toMatchObject({ allowed: {}, refused: { 'site.test': 2 } });
    expect(seen).toEqual([]);
  });

  it.each([
    'site.test',
    'inner.test',
    'metadata.test',
    'mixed.test',
    'mapped.test',
    '127.0.0.1',
    '10.1.2.3',
    '169.254.169.254',
    '[::1]',
    '[::ffff:7f00:1]',
  ])('refuses %s, which is not on the Internet, unless the operator lists the host', async (host) => {
    const proxy = await start({ node: null });
    expect((await tunnel(`${host}:443`))[0]).toBe(403);
    expect((await get(`http://${host}/`))[0]).toBe(403);
    expect(Object.values(proxy.counts().refused)).toEqual([2]);
    expect(Object.values(proxy.counts().allowed).filter((count) => count > 0)).toEqual([]);
  });

  it.each(['metadata.test', '169.254.169.254'])('refuses %s even when the operator lists it', async (host) => {
    await start({ node: [host] });
    expect((await tunnel(`${host}:80`))[0]).toBe(403);
  });

  it('refuses a host below a listed pattern that has a private address', async () => {
    await start({ node: ['*.test'] });
    expect((await tunnel('inner.test:443'))[0]).toBe(403);
  });

  it.each([
    ['GET / HTTP/1.1\r\nhost: site.test\r\n\r\n', 400],
    ['GET https://site.test/ HTTP/1.1\r\nhost: site.test\r\n\r\n', 400],
    ['GET ftp://site.test/ HTTP/1.1\r\nhost: site.test\r\n\r\n', 400],
    ['CONNECT site.test HTTP/1.1\r\nhost: site.test\r\n\r\n', 400],
    ['CONNECT http://site.test/ HTTP/1.1\r\nhost: site.test\r\n\r\n', 400],
    ['GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n', 501],
  ])('answers %j with %i', async (message, status) => {
    await start();
    const socket = connect(join(dir, 's'));
    socket.write(message);
    expect(await text(socket)).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
  });

  it('answers 502 when the host cannot be reached or does not exist', async () => {
    const closed = createTcpServer().listen(0, '127.0.0.1');
    await once(closed, 'listening');
    const { port: freePort } = closed.address() as AddressInfo;
    await new Promise((resolve) => closed.close(resolve));
    await start({ node: [`site.test:${freePort}`, 'absent.test'] });
    expect((await get(`http://site.test:${freePort}/`))[0]).toBe(502);
    expect((await tunnel(`site.test:${freePort}`))[0]).toBe(502);
    expect((await tunnel('absent.test:443'))[0]).toBe(502);
  });

  it('ends its connections when it is closed', async () => {
    const proxy = await start();
    const [, socket] = await tunnel(`site.test:${port}`);
    socket.on('error', () => {});
    const ended = once(socket, 'close');
    await proxy.close();
    await ended;
    expect(socket.destroyed).toBe(true);
  });

  it('counts a bounded number of hosts', async () => {
    const proxy = await start();
    for (let i = 0; i < 120; i++) await get(`http://h${i}.test/`);
    const { refused } = proxy.counts();
    expect(Object.keys(refused)).toHaveLength(101);
    expect(refused.others).toBe(20);
  });
});
