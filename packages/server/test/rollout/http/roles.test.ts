import { NodeApi } from '@floe-rl/client';
import { VirtualClock } from '@floe-rl/core';
import type { Role, RolloutStatus } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RateLimit } from '../../../src/rollout/http/admission.ts';
import { API, type RouteSpec } from '../../../src/rollout/http/api.ts';
import { createRolloutServer } from '../../../src/rollout/index.ts';
import type { Refusal } from '../call.ts';
import { METRICS, REGISTRATION, type Running, task, Workbench } from '../workbench.ts';

const ROLES: readonly Role[] = ['admin', 'trainer', 'node', 'viewer'];
const TOKENS = ROLES.filter((role) => role !== 'admin').map((role) => ({ token: `${role}-token`, role }));

let bench: Workbench;
let running: Running;
beforeAll(async () => {
  bench = await Workbench.create();
  running = await bench.server({ token: 'admin-token', tokens: TOKENS, event_heartbeat_seconds: 60 });
});
afterAll(() => bench.dispose());

async function ask(method: string, url: string, token: string | null, on = running, payload?: string) {
  const headers = token === null ? {} : { authorization: `Bearer ${token}` };
  const reply = await on.server.app.inject({ method: method as 'GET', url, headers, ...(payload ? { payload } : {}) });
  return { status: reply.statusCode, headers: reply.headers, body: JSON.parse(reply.payload || 'null') };
}

describe('each call', () => {
  // All routes except the event stream, whose reply never ends. It is tested separately below.
  const routes = Object.entries<RouteSpec>(API).filter(([name]) => name !== 'events');
  it.each(routes)('is open to its roles and to no others: %s', async (_, route) => {
    const url = route.path.replace(':id', 'x');
    for (const role of ROLES) {
      const reply = await ask(route.method, url, `${role}-token`);
      const allowed = route.open === true || role === 'admin' || route.roles.includes(role);
      if (!allowed)
        expect(reply).toMatchObject({ status: 403, body: { error: { code: 'forbidden', retryable: false } } });
      else expect([401, 403], `${role} ${route.method} ${url}`).not.toContain(reply.status);
    }
  });

  it('changes nothing for a viewer', () => {
    for (const route of Object.values<RouteSpec>(API)) {
      // The texts of tokens are computed from the body, which is too long for a query.
      if (route.method !== 'GET' && route !== API.tokenTexts) expect(route.roles).not.toContain('viewer');
    }
  });

  it('is closed to trainers when only nodes make it, and the other way round', () => {
    const open = (role: Role) => Object.values<RouteSpec>(API).filter((route) => route.roles.includes(role));
    expect(open('trainer').filter((route) => open('node').includes(route))).toEqual([]);
  });

  it('is counted when it is refused', async () => {
    const { body } = await ask('GET', '/rollout/status', 'viewer-token');
    const before = (body as RolloutStatus).counters;
    await ask('DELETE', '/engines', 'viewer-token');
    await ask('DELETE', '/engines', 'wrong');
    const after = ((await ask('GET', '/rollout/status', 'viewer-token')).body as RolloutStatus).counters;
    expect(after.forbidden).toBe((before.forbidden ?? 0) + 1);
    expect(after.unauthorized).toBe((before.unauthorized ?? 0) + 1);
  });

  it('reads results for a viewer without collecting them', async () => {
    expect((await ask('GET', '/rollout/results?after=0', 'viewer-token')).status).toBe(200);
    expect((await ask('GET', '/rollout/results?consumer=c', 'viewer-token')).body.error.code).toBe('forbidden');
  });
});

describe('separate listeners', () => {
  let split: Running;
  let urls: { url: string; nodeUrl: string | null; adminUrl: string | null };
  beforeAll(async () => {
    const place = { host: '127.0.0.1', port: 0 };
    const metricsRegistry = { contentType: 'text/plain', metrics: async () => 'floe_up 1\n' };
    split = await bench.server(
      { token: 'admin-token', node_listener: place, admin_listener: place },
      { ...(await bench.open()), metricsRegistry },
    );
    urls = await split.server.listen();
  });

  async function get(base: string | null, path: string, method = 'GET') {
    const reply = await fetch(`${base}${path}`, { method, headers: { authorization: 'Bearer admin-token' } });
    return { status: reply.status, text: await reply.text() };
  }

  it('serve their own routes, and health on each', async () => {
    for (const base of [urls.url, urls.nodeUrl, urls.adminUrl]) {
      expect((await get(base, '/health')).status).toBe(200);
      expect((await get(base, '/ready')).status).toBe(200);
    }
    expect(await get(urls.adminUrl, '/metrics')).toEqual({ status: 200, text: 'floe_up 1\n' });
    expect((await get(urls.url, '/metrics')).status).toBe(404);
    expect((await get(urls.nodeUrl, '/metrics')).status).toBe(404);
    expect((await get(urls.url, '/tasks')).status).toBe(200);
    expect((await get(urls.nodeUrl, '/tasks')).status).toBe(404);
    expect((await get(urls.nodeUrl, '/rollout/task/submit', 'POST')).status).toBe(404);
    const lost = await get(urls.url, '/nodes/n/lease', 'POST');
    expect(lost.status).toBe(404);
    expect((JSON.parse(lost.text) as Refusal).error.message).toContain('node listener');
  });

  it('serve a node on the node listener', async () => {
    const node = new NodeApi({ url: urls.nodeUrl ?? '', nodeId: 'n1', token: 'admin-token' });
    await node.register(REGISTRATION);
    await ask('POST', '/rollout/task/submit', 'admin-token', split, JSON.stringify(task()));
    expect(await node.lease({ slots: 1, wait_seconds: 5 })).toHaveLength(1);
    await node.heartbeat({ metrics: METRICS, refuses: null, sessions: [], engines: null, wait_seconds: 0 });
    await node.close();
  });

  it('are not opened beyond loopback without a token', async () => {
    const deps = { ...(await bench.open()), clock: bench.clock, validateTask: () => {} };
    const beyond = { node_listener: { host: '0.0.0.0', port: 0 } };
    await expect(createRolloutServer(beyond, deps)).rejects.toMatchObject({ code: 'setup_failed' });
  });

  it('are all closed when one address is in use', async () => {
    const port = Number(new URL(urls.url).port);
    const { store, blobs } = await bench.open();
    const second = await bench.server({ port: 0, admin_listener: { host: '127.0.0.1', port } }, { store, blobs });
    await expect(second.server.listen()).rejects.toMatchObject({ code: 'setup_failed' });
    expect(second.server.app.server.listening).toBe(false);
  });
});

describe('rate limits', () => {
  it('report to a client when it may retry, and do not delay other clients', async () => {
    const clock = new VirtualClock();
    const own = await Workbench.create(clock);
    const limited = await own.server({
      tokens: [
        { token: 'one', role: 'trainer' },
        { token: 'two', role: 'trainer' },
        { token: 'n', role: 'node' },
      ],
      reads_per_second: 0.5,
      submits_per_second: 0.25,
      rate_burst_seconds: 4,
    });
    const statuses = async (token: string, count: number) => {
      const seen: number[] = [];
      for (let i = 0; i < count; i++) seen.push((await ask('GET', '/tasks', token, limited)).status);
      return seen;
    };
    expect(await statuses('one', 4)).toEqual([200, 200, 429, 429]);
    expect(await statuses('two', 1)).toEqual([200]);
    const refused = await ask('GET', '/tasks', 'one', limited);
    expect(refused).toMatchObject({
      headers: { 'retry-after': '2' },
      body: { error: { code: 'overloaded', retryable: true, details: { retry_after_seconds: 2 } } },
    });
    // Submits have a rate limit of their own. The first submit is accepted although the other calls have exhausted their limit; the second
    // submit is refused.
    expect((await ask('POST', '/rollout/task/submit', 'one', limited, JSON.stringify(task()))).status).toBe(200);
    expect((await ask('POST', '/rollout/task/submit', 'one', limited, JSON.stringify(task()))).status).toBe(429);
    // Heartbeats and other calls of nodes have no rate limit, because a refused heartbeat could cost a node its leases.
    for (let i = 0; i < 5; i++) expect((await ask('POST', '/nodes/register', 'n', limited)).status).toBe(400);
    for (let i = 0; i < 5; i++) expect((await ask('GET', '/health', null, limited)).status).toBe(200);
    clock.advance(2000);
    expect(await statuses('one', 2)).toEqual([200, 429]);
    expect((await ask('GET', '/rollout/status', 'two', limited)).body.counters.rate_limited).toBe(5);
    await own.dispose();
  });

  it('count only submits against the limit of submits', async () => {
    const own = await Workbench.create(new VirtualClock());
    const limited = await own.server({ reads_per_second: 1, submits_per_second: 1, rate_burst_seconds: 1 });
    const post = async (url: string, body?: object) =>
      (await ask('POST', url, null, limited, body && JSON.stringify(body))).status;
    expect(await post('/engines/resume?wait=0')).toBe(200);
    expect(await post('/engines/resume?wait=0')).toBe(429);
    expect(await post('/rollout/task/submit', task())).toBe(200);
    expect(await post('/rollout/task/submit', task())).toBe(429);
    await own.dispose();
  });

  it('allow the configured rate, and drop the least recently seen callers', () => {
    const clock = new VirtualClock();
    const limit = new RateLimit(clock, 10, 5);
    let allowed = 0;
    for (let ms = 0; ms < 10_000; ms += 10) {
      if (limit.take('a') === 0) allowed++;
      clock.advance(10);
    }
    expect(allowed).toBeGreaterThanOrEqual(103);
    expect(allowed).toBeLessThanOrEqual(105);
    for (let i = 0; i < 30_000; i++) limit.take(`caller ${i}`);
    expect(limit.take('a')).toBe(0);
  });
});

describe('a server without a token', () => {
  it.each([
    [{ host: 'localhost:8080' }, 200],
    [{ host: '127.0.0.1' }, 200],
    [{ host: '[::1]:8080' }, 200],
    [{ host: 'localhost', origin: 'http://localhost:3000' }, 200],
    [{ host: 'rebound.example' }, 403],
    [{ host: 'localhost', origin: 'https://evil.example' }, 403],
    [{ host: 'localhost', origin: 'null' }, 403],
  ])(
    'answers programs on this machine and refuses web pages: the headers %o get status %i',
    async (headers, status) => {
      const open = await bench.server({}, await bench.open());
      expect((await open.server.app.inject({ url: '/tasks', headers })).statusCode).toBe(status);
    },
  );
});
