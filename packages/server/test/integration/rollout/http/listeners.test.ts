import { writeFileSync } from 'node:fs';
import { FloeClient, NodeApi } from '@floe-rl/client';
import { VirtualClock } from '@floe-rl/core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import type { RolloutConfigInput } from '../../../../src/rollout/index.ts';
import { Authority, type Pair, serialOf, whyNoCertificates } from '../../../rollout/certificates.ts';
import { REGISTRATION, type Running, task, Workbench } from '../../../rollout/workbench.ts';

describeIf(whyNoCertificates(), 'TLS', () => {
  let authority: Authority;
  let stranger: Authority;
  let server: Pair;
  beforeAll(() => {
    authority = new Authority('floe test authority');
    stranger = new Authority('another authority');
    server = authority.issue('server');
  });
  afterAll(() => {
    authority.remove();
    stranger.remove();
  });

  let bench: Workbench;
  let clock: VirtualClock;
  const undo: (() => Promise<unknown>)[] = [];
  beforeEach(async () => {
    clock = new VirtualClock();
    bench = await Workbench.create(clock);
  });
  afterEach(async () => {
    for (const close of undo.splice(0)) await close();
    await bench.dispose();
  });

  async function start(config: RolloutConfigInput, errors: object[] = []): Promise<Running> {
    const log = {
      info: () => {},
      warn: () => {},
      error: (fields: object, message: string) => errors.push({ ...fields, message }),
    };
    return bench.server(config, { log });
  }

  function clientOf(url: string, tls?: { ca?: string }): FloeClient {
    const client = new FloeClient({ url, token: 't', tls });
    undo.push(() => client.close());
    return client;
  }

  function nodeOf(url: string, tls: { ca?: string } & Partial<Pair>): NodeApi {
    const node = new NodeApi({ url, nodeId: 'n1', token: 't', tls });
    undo.push(() => node.close());
    return node;
  }

  it('serves clients that trust the authority, and no others', async () => {
    const running = await start({ token: 't', tls: server });
    const { url } = await running.server.listen();
    expect(url).toMatch(/^https:\/\/127\.0\.0\.1:\d+$/);
    const trusting = clientOf(url, { ca: authority.cert });
    await trusting.submit(task());
    const node = nodeOf(url, { ca: authority.cert });
    await node.register(REGISTRATION);
    expect(await node.lease({ slots: 1, wait_seconds: 0 })).toHaveLength(1);
    for (const tls of [undefined, { ca: stranger.cert }]) {
      await expect(clientOf(url, tls).status()).rejects.toMatchObject({ code: 'peer_unreachable' });
    }
    // A plain HTTP request gets no answer, so a token that is sent unencrypted is never accepted.
    await expect(clientOf(url.replace('https', 'http')).status()).rejects.toMatchObject({ code: 'peer_unreachable' });
    expect((await trusting.status()).limits).toMatchObject({ tls: true, client_certificates: false });
  });

  it('uses a replaced certificate for new connections, and ignores a broken one', async () => {
    const errors: object[] = [];
    const own = authority.issue('renewed');
    const running = await start({ token: 't', tls: own }, errors);
    const { url } = await running.server.listen();
    const before = await serialOf(url);
    expect(await serialOf(url)).toBe(before);
    authority.issue('renewed');
    clock.advance(6000);
    const renewed = await serialOf(url);
    expect(renewed).not.toBe(before);
    writeFileSync(own.cert, 'half a fi');
    clock.advance(6000);
    expect(await serialOf(url)).toBe(renewed);
    expect(errors).toMatchObject([
      {
        error: expect.stringContaining('renewed.pem'),
        message: 'the changed certificate cannot be used; the previous one stays in use',
      },
    ]);
    authority.issue('renewed');
    clock.advance(6000);
    expect(await serialOf(url)).not.toBe(renewed);
  });

  it('requires a certificate of the client authority from nodes, but not from trainers', async () => {
    const place = { host: '127.0.0.1', port: 0 };
    for (const split of [{}, { node_listener: place }]) {
      const running = await start({ token: 't', tls: { ...server, client_ca: authority.cert }, ...split });
      const { url, nodeUrl } = await running.server.listen();
      const at = nodeUrl ?? url;
      const ca = authority.cert;
      await nodeOf(at, { ca, ...authority.issue('node') }).register(REGISTRATION);
      for (const shown of [{}, stranger.issue('node')]) {
        const refused = nodeOf(at, { ca, ...shown }).register(REGISTRATION);
        await expect(refused).rejects.toMatchObject({ code: 'forbidden' });
      }
      expect((await clientOf(url, { ca }).status()).limits.client_certificates).toBe(true);
    }
  });

  it.each([
    ['a file that is not there', () => ({ cert: '/nowhere/cert.pem', key: server.key }), '/nowhere/cert.pem'],
    ['a key of another certificate', () => ({ cert: server.cert, key: authority.issue('x').key }), 'server.pem'],
    ['a key that is none', () => ({ cert: server.cert, key: server.cert }), 'server.pem'],
  ])('refuses %s at the start', async (_, files, named) => {
    await expect(start({ token: 't', tls: files() })).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining(named),
    });
  });

  it('reports a client whose files are missing', () => {
    expect(() => clientOf('https://127.0.0.1:1', { ca: '/nowhere' })).toThrow(
      expect.objectContaining({ code: 'setup_failed' }),
    );
  });
});
