import { systemClock } from '@floe-rl/core';
import { createLogger } from '@floe-rl/observe';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { API, type RouteSpec } from '../../src/rollout/http/api.ts';
import { createRolloutServer } from '../../src/rollout/index.ts';
import { openStore } from '../../src/store/index.ts';
import { METRICS, REGISTRATION, type Running, summaryOf, TRAJECTORY, task, Workbench } from './workbench.ts';

const CANARY = 'c4n4ry';
const secret = (what: string): string => `${CANARY}-${what}`;
const SIGNING = `whsec_${Buffer.from(`${CANARY} ${CANARY} ${CANARY} ${CANARY}!`).toString('base64')}`;

/** Matches any secret of this test, whether as plain text, as base64 or URL-encoded. */
const LEAK = new RegExp([CANARY, SIGNING.slice(6), encodeURIComponent(CANARY)].join('|'));

let bench: Workbench;
let published: string[];
let running: Running;
beforeEach(async () => {
  bench = await Workbench.create();
  published = [];
  const log = createLogger('test', 'trace', { write: (line: string) => void published.push(`log: ${line}`) });
  running = await bench.server(
    {
      token: secret('admin'),
      tokens: [
        { token: secret('trainer'), role: 'trainer' },
        { token: secret('node'), role: 'node' },
        { token: secret('viewer'), role: 'viewer' },
      ],
      callback_secrets: [SIGNING],
      callback_backoff_seconds: 0.01,
      callback_backoff_max_seconds: 0.02,
    },
    { log, ...(await bench.open()) },
  );
  running.server.subscribe((event) => published.push(`event: ${JSON.stringify(event)}`));
});
afterEach(() => bench.dispose());

async function ask(method: string, url: string, token: string, body?: unknown): Promise<string> {
  const reply = await running.server.app.inject({
    method: method as 'GET',
    url,
    headers: { authorization: `Bearer ${token}` },
    ...(body === undefined ? {} : { payload: typeof body === 'string' ? body : JSON.stringify(body) }),
  });
  published.push(`${method} ${url.split('?')[0]}: ${JSON.stringify(reply.headers)} ${reply.payload}`);
  return reply.payload;
}

describe('secrets', () => {
  it('are not in any listing, event, error or log line', async () => {
    const admin = secret('admin');
    const client = await running.client(admin);
    const node = await running.node('n1', admin);
    const submitted = await client.submit(
      task({
        task_id: 't1',
        agent: { harness: 'shell', custom_shell: 'true', env: { API_KEY: secret('agent-env') } },
        runtime: { env: { PASSWORD: secret('runtime-env') } },
        evaluator: { strategy: 'session_completed', env: { TOKEN: secret('evaluator-env') } },
        // No server listens on this port, so the callback fails, and its failure is logged.
        callback_url: `http://127.0.0.1:9/done?token=${secret('callback-url')}`,
      }),
    );
    const addEngine = { base_url: 'http://127.0.0.1:9', api_key: secret('engine') };
    await ask('POST', '/engines?wait=0', admin, addEngine);
    const [lease] = await node.lease({ slots: 1, wait_seconds: 5 });
    if (lease === undefined) throw new Error('a session was queued');
    // The reply to a lease request is meant to contain the secrets, because the node needs them to run the session.
    expect(lease.task.agent.env.API_KEY).toBe(secret('agent-env'));
    const beat = await node.heartbeat({
      metrics: METRICS,
      refuses: null,
      sessions: [],
      engines: { revision: 0, heard: 0, info: [], problems: [], unpaused: [] },
      wait_seconds: 0,
    });
    expect(beat.engines?.engines[0]?.api_key).toBe(secret('engine'));
    await node.deliverResult({ summary: summaryOf(lease), trajectory: TRAJECTORY, completions: null, artifacts: null });
    while (!published.some((line) => line.includes('a callback failed'))) await new Promise(setImmediate);

    for (const route of Object.values<RouteSpec>(API)) {
      if (route.method !== 'GET' || route.path === '/events') continue;
      for (const id of ['t1', submitted.session_ids[0] ?? '', 'n1', 'nobody']) {
        await ask('GET', route.path.replace(':id', id), admin);
      }
    }
    await ask('GET', '/rollout/task/t1?results=full', admin);

    // All of these requests are refused. They contain a wrong or insufficient token, or a secret in the body. No reply and no log line may
    // contain these values.
    for (const token of [secret('wrong'), secret('viewer'), secret('node')]) await ask('DELETE', '/engines', token);
    const again = { ...task({ task_id: 't1' }), metadata: { password: secret('metadata') } };
    await ask('POST', '/rollout/task/submit', admin, again);
    await ask('POST', '/rollout/task/submit', admin, { ...again, agent: secret('not-an-object') });
    await ask('POST', '/rollout/task/submit', admin, {
      ...again,
      task_id: 't2',
      callback_url: `http://u:${secret('p')}@x/`,
    });
    await ask('POST', '/engines', admin, { ...addEngine, base_url: `http://user:${secret('password')}@127.0.0.1:9` });
    await ask('POST', '/engines', admin, { ...addEngine, api_key: [secret('list')] });
    await ask('POST', '/nodes/n1/lease', admin, { slots: secret('slots') });
    await ask('POST', '/nodes/register', admin, { ...REGISTRATION, node_id: 'n2', instance: `/${secret('odd')}` });

    expect(published.length).toBeGreaterThan(80);
    expect(published.filter((line) => LEAK.test(line))).toEqual([]);
  });

  it('are not repeated when a configuration is refused', async () => {
    const deps = { ...(await bench.open()), clock: systemClock, validateTask: () => {} };
    for (const wrong of [
      { callback_secrets: [secret('short')] },
      { callback_secrets: SIGNING },
      { tokens: [{ token: secret('a'), role: 'owner' }] },
      { tokens: [secret('a')] },
      { token: 7, tokens: [{ token: secret('a'), role: 'node', scope: 'x' }] },
    ]) {
      const error = await createRolloutServer(wrong as object, deps).catch((thrown) => thrown);
      expect(error).toMatchObject({ code: 'schema_violation' });
      expect(`${error.message} ${JSON.stringify(error.details)}`).not.toMatch(LEAK);
    }
  });

  it('are not repeated when a database cannot be reached', async () => {
    const database = `postgres://floe:${secret('database')}@127.0.0.1:9/floe`;
    const opened = openStore({ dir: bench.directory, database, blobs: null, clock: systemClock });
    const error = await opened.catch((thrown) => thrown);
    expect(error.code).toMatch(/setup_failed|store_unavailable/);
    const lines: string[] = [];
    createLogger('test', 'trace', { write: (line: string) => void lines.push(line) }).error({ err: error }, 'no store');
    expect(`${error.message} ${JSON.stringify(error.details)} ${lines}`).not.toMatch(LEAK);
  });

  it('are censored by the logger according to their names, at any depth', () => {
    const lines: string[] = [];
    const log = createLogger('test', 'info', { write: (line: string) => void lines.push(line) });
    log.info({ token: secret('1'), engine: { api_key: secret('2') } }, 'a');
    log.info(
      {
        config: { tokens: [{ token: secret('3') }], callback_secrets: [SIGNING] },
        headers: { authorization: secret('4') },
      },
      'b',
    );
    log.info({ a: { b: { c: { password: secret('5') } } } }, 'c');
    expect(lines).toHaveLength(3);
    expect(lines.filter((line) => LEAK.test(line))).toEqual([]);
  });
});
