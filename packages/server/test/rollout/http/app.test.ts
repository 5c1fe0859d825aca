import { once } from 'node:events';
import { connect } from 'node:net';
import { ENVELOPE_TYPE, encodeEnvelope } from '@floe-rl/core/protocol';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { API } from '../../../src/rollout/http/api.ts';
import { createRolloutServer } from '../../../src/rollout/index.ts';
import { Caller, type Refusal } from '../call.ts';
import { METRICS, REGISTRATION, type Running, summaryOf, TRAJECTORY, task, Workbench } from '../workbench.ts';

const TOKEN = 'correct-horse';
let bench: Workbench;
let other: Workbench;
let running: Running;
let guarded: Running;
beforeAll(async () => {
  bench = await Workbench.create();
  running = await bench.server();
  await new Caller(running.server).register('n1');
  other = await Workbench.create();
  guarded = await other.server({ token: TOKEN });
});
afterAll(async () => {
  await bench.dispose();
  await other.dispose();
});

const DEEP = `${'['.repeat(300)}${']'.repeat(300)}`;
const validTask = task();
const beat = { metrics: METRICS, sessions: [] };

/**
 * Malformed requests. Each entry lists a description, method, path, body, and the expected status, error code and path of the field that
 * the reply names.
 */
const MALFORMED: readonly [string, string, string, string | Buffer | null, number, string, string?][] = [
  ['no body', 'POST', '/rollout/task/submit', null, 400, 'malformed_json'],
  ['half a body', 'POST', '/rollout/task/submit', '{"instruction":', 400, 'malformed_json'],
  ['invalid UTF-8', 'POST', '/rollout/task/submit', Buffer.from([0x22, 0xff, 0x22]), 400, 'malformed_json'],
  ['deep nesting', 'POST', '/rollout/task/submit', DEEP, 400, 'malformed_json'],
  ['an array', 'POST', '/rollout/task/submit', '[]', 422, 'schema_violation', '(whole object)'],
  ['null', 'POST', '/rollout/task/submit', 'null', 422, 'schema_violation', '(whole object)'],
  ['a missing field', 'POST', '/rollout/task/submit', '{"instruction":"x"}', 422, 'schema_violation', 'agent'],
  ...wrongTasks(),
  ['a way out of the path', 'GET', '/rollout/task/..%2f..%2fetc', null, 400, 'bad_request'],
  ['an id with a slash', 'GET', '/rollout/task/a%2fb', null, 422, 'schema_violation'],
  ['a NUL in the path', 'GET', '/rollout/task/a%00b', null, 400, 'bad_request'],
  ['an overlong id', 'GET', `/rollout/task/${'a'.repeat(200)}`, null, 422, 'schema_violation'],
  ['a broken escape', 'GET', '/rollout/task/%zz', null, 400, 'bad_request'],
  ['an unknown task', 'GET', '/rollout/task/nope', null, 404, 'not_found'],
  ['an unknown session', 'GET', '/sessions/nope', null, 404, 'not_found'],
  ['an unknown session', 'DELETE', '/sessions/nope', null, 404, 'not_found'],
  ['an unknown trajectory', 'GET', '/sessions/nope/trajectory', null, 404, 'not_found'],
  ['an unknown node', 'DELETE', '/nodes/nope', null, 404, 'not_found'],
  ['an unknown route', 'GET', '/nothing', null, 404, 'not_found'],
  ['a wrong method', 'POST', '/rollout/results', '{}', 405, 'method_not_allowed'],
  ['a wrong method', 'DELETE', '/rollout/task/submit/x', null, 404, 'not_found'],
  ['a HEAD', 'HEAD', '/rollout/status', null, 405, 'method_not_allowed'],
  ['a word as cursor', 'GET', '/rollout/results?after=abc', null, 422, 'schema_violation', 'after'],
  ['a negative cursor', 'GET', '/rollout/results?after=-1', null, 422, 'schema_violation', 'after'],
  ['a broken cursor', 'GET', '/rollout/results?after=1.5', null, 422, 'schema_violation', 'after'],
  ['two cursors', 'GET', '/rollout/results?after=1&after=2', null, 422, 'schema_violation', 'after'],
  ['an overlong cursor', 'GET', `/rollout/results?after=${'9'.repeat(40)}`, null, 422, 'schema_violation', 'after'],
  ['a cursor from elsewhere', 'GET', '/rollout/results?after=99', null, 422, 'schema_violation', 'after'],
  ['a limit of 0', 'GET', '/rollout/results?limit=0', null, 422, 'schema_violation', 'limit'],
  ['an endless wait', 'GET', '/rollout/results?wait=999', null, 422, 'schema_violation', 'wait'],
  ['an unknown query', 'GET', '/rollout/results?form=x', null, 422, 'schema_violation', '(whole object)'],
  ['an unknown state', 'GET', '/tasks?status=odd', null, 422, 'schema_violation', 'status'],
  ['a node without pools', 'POST', '/nodes/register', '{"node_id":"a"}', 422, 'schema_violation', 'max_init_workers'],
  ['no slots', 'POST', '/nodes/n1/lease', '{"slots":0}', 422, 'schema_violation', 'slots'],
  [
    'metrics of text',
    'POST',
    '/nodes/n1/heartbeat',
    '{"metrics":"x","sessions":[]}',
    422,
    'schema_violation',
    'metrics',
  ],
  ['an unknown field', 'POST', '/nodes/n1/heartbeat', JSON.stringify({ ...beat, x: 1 }), 422, 'schema_violation'],
  ['no envelope type', 'POST', '/nodes/n1/results', '{}', 400, 'bad_request'],
];

function wrongTasks(): [string, string, string, string, number, string, string][] {
  const wrong: [string, object, string][] = [
    ['an unknown field', { surprise: 1 }, '(whole object)'],
    ['an unknown nested field', { agent: { harness: 'shell', surprise: 1 } }, 'agent'],
    ['a path as id', { task_id: '../../etc/passwd' }, 'task_id'],
    ['an empty id', { task_id: '' }, 'task_id'],
    ['a fraction of a sample', { num_samples: 1.5 }, 'num_samples'],
    ['too many samples', { num_samples: 1e9 }, 'num_samples'],
    ['a priority of text', { dispatch_priority: 'high' }, 'dispatch_priority'],
    ['no time', { timeout_seconds: 0 }, 'timeout_seconds'],
    ['a file as callback', { callback_url: 'file:///etc/passwd' }, 'callback_url'],
    ['a password in the callback', { callback_url: 'http://a:b@127.0.0.1/' }, 'callback_url'],
    ['a callback to elsewhere', { callback_url: 'http://169.254.169.254/latest' }, 'callback_url'],
    ['a callback to a name', { callback_url: 'http://example.com/' }, 'callback_url'],
    ['a callback in disguise', { callback_url: 'http://[::ffff:10.0.0.1]/' }, 'callback_url'],
  ];
  return wrong.map(([what, fields, path]) => [
    what,
    'POST',
    '/rollout/task/submit',
    JSON.stringify({ ...validTask, ...fields }),
    422,
    'schema_violation',
    path,
  ]);
}

describe('the control API', () => {
  describe('a malformed request', () => {
    it.each(MALFORMED)(
      'is refused with a code and the field: %s: %s %s',
      async (_, method, url, body, status, code, field) => {
        const reply = await running.server.app.inject({
          method: method as 'GET',
          url,
          ...(body === null ? {} : { payload: body, headers: { 'content-type': 'application/json' } }),
        });
        expect(reply.statusCode).toBe(status);
        if (method === 'HEAD') return;
        const { error } = JSON.parse(reply.payload) as Refusal;
        expect(error).toMatchObject({ code, retryable: false });
        if (field === undefined) return;
        const paths = (error.details.issues as { path: string }[]).map((issue) => issue.path);
        expect(paths).toContain(field);
        if (field !== '(whole object)') expect(error.message).toContain(field);
      },
    );
  });

  it('refuses a request with a malformed content type and names the media type as the reason', async () => {
    const reply = await running.server.app.inject({
      method: 'POST',
      url: '/rollout/task/submit',
      payload: JSON.stringify(validTask),
      headers: { 'content-type': 'json' },
    });
    expect(reply.statusCode).toBe(400);
    expect((JSON.parse(reply.payload) as Refusal).error.message).toMatch(/media type/i);
  });

  describe('a malformed result', () => {
    const lease = { session_id: 'ses_1', task_id: 't', sample_index: 0, attempt: 1, epoch: 1 };
    const header = summaryOf(lease);
    const envelope = (parts: [string, Buffer][], head: unknown = header) =>
      encodeEnvelope({ header: head, parts: new Map(parts) });
    const cases: [string, Buffer, number, string][] = [
      ['empty', Buffer.alloc(0), 400, 'malformed_json'],
      ['no header line', Buffer.from('{}'), 400, 'malformed_json'],
      ['a header that is no object', Buffer.from('7\n'), 400, 'malformed_json'],
      ['a deep header', Buffer.from(`{"header":${DEEP},"parts":[]}\n`), 400, 'malformed_json'],
      ['a part cut off', envelope([['trajectory', TRAJECTORY]]).subarray(0, -1), 400, 'malformed_json'],
      ['bytes after the parts', Buffer.concat([envelope([]), Buffer.from('x')]), 400, 'malformed_json'],
      ['a negative size', Buffer.from('{"header":{},"parts":[{"name":"a","bytes":-1}]}\n'), 400, 'malformed_json'],
      ['a summary without fields', envelope([], {}), 422, 'schema_violation'],
      ['a status that is not of its outcome', envelope([], { ...header, status: 'ERROR' }), 422, 'schema_violation'],
      ['an unknown part', envelope([['secret', Buffer.from('x')]]), 422, 'schema_violation'],
      ['a trajectory of text', envelope([['trajectory', Buffer.from('"x"')]]), 422, 'schema_violation'],
      ['a trajectory on two lines', envelope([['trajectory', Buffer.from('{\n}')]]), 422, 'schema_violation'],
      [
        'a trajectory that is not UTF-8',
        envelope([['trajectory', Buffer.from([0x7b, 0xff, 0x7d])]]),
        422,
        'schema_violation',
      ],
      ['an unknown session', envelope([]), 404, 'not_found'],
    ];
    it.each(cases)('is refused and changes nothing: %s', async (_, payload, status, code) => {
      const headers = { 'content-type': ENVELOPE_TYPE };
      const reply = await running.server.app.inject({ method: 'POST', url: '/nodes/n1/results', payload, headers });
      expect({ status: reply.statusCode, code: (JSON.parse(reply.payload) as Refusal).error.code }).toEqual({
        status,
        code,
      });
    });
  });

  it("refuses a summary that names another task or attempt than the session's, and names the field", async () => {
    const caller = new Caller(running.server);
    await caller.submit(task());
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('a session was queued');
    for (const wrong of [{ task_id: 'other' }, { sample_index: 5 }, { attempt: 9 }]) {
      const reply = await caller.deliver('n1', summaryOf({ ...lease, ...wrong }));
      const issues = [{ path: Object.keys(wrong)[0] }];
      expect(reply).toMatchObject({ status: 422, body: { error: { code: 'schema_violation', details: { issues } } } });
    }
    expect((await caller.deliver('n1', summaryOf(lease))).status).toBe(200);
  });

  it('answers 413 to a body over the limit, and has a separate limit for results', async () => {
    const big = JSON.stringify({ ...validTask, instruction: 'x'.repeat(9 * 1024 * 1024) });
    const submit = await running.server.app.inject({ method: 'POST', url: '/rollout/task/submit', payload: big });
    expect(submit.statusCode).toBe(413);
    expect((JSON.parse(submit.payload) as Refusal).error.code).toBe('body_too_large');
    const result = await running.server.app.inject({
      method: 'POST',
      url: '/nodes/n1/results',
      payload: Buffer.alloc(9 * 1024 * 1024),
      headers: { 'content-type': ENVELOPE_TYPE },
    });
    expect((JSON.parse(result.payload) as Refusal).error.code).toBe('malformed_json');
  });

  it('stores and returns unusual text without a failure', async () => {
    const caller = new Caller(running.server);
    for (const text of ['a\u0000b', '\ud800', '💡', '"; drop table tasks; --']) {
      const reply = await caller.submit(task({ instruction: text, idempotency_key: text, metadata: { [text]: text } }));
      const [lease] = await caller.lease('n1');
      expect(lease).toMatchObject({ session_id: reply.session_ids[0] });
      expect(lease?.task.instruction).toBe(text);
    }
  });

  /** Sends raw bytes, and returns what the server sends until it closes the connection. */
  async function raw(text: string): Promise<string> {
    const url = new URL(await running.listen());
    const socket = connect(Number(url.port), url.hostname);
    await once(socket, 'connect');
    socket.write(text);
    let received = '';
    for await (const chunk of socket) received += String(chunk);
    return received;
  }

  describe('an ambiguous request', () => {
    const many = Array.from({ length: 150 }, (_, i) => `x-${i}: 1`).join('\r\n');
    it.each([
      ['two hosts', 'GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n'],
      ['an absolute target', 'GET http://other/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n'],
      ['too many headers', `GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n${many}\r\n\r\n`],
      ['two lengths', 'POST /health HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n'],
      ['no HTTP at all', 'hello\r\n\r\n'],
    ])('is refused: %s', async (_, text) => {
      const reply = await raw(text);
      expect(reply).toMatch(/^HTTP\/1\.1 400 /);
      expect(reply).toContain('"code":"bad_request"');
    });

    it('is not confused with an ordinary one, which is answered', async () => {
      expect(await raw('GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n')).toContain('{"status":"ok"}');
    });
  });

  describe('the control token', () => {
    const paths = Object.values(API).map((route) => [route.method, route.path.replace(':id', 'x')] as const);
    it.each(paths)('is required for %s %s', async (method, url) => {
      for (const authorization of [
        undefined,
        'Bearer wrong',
        'Bearer correct-horse-',
        'Basic correct-horse',
        'correct-horse',
      ]) {
        const reply = await guarded.server.app.inject({
          method,
          url,
          headers: authorization === undefined ? {} : { authorization },
        });
        const open = url === '/health' || url === '/ready';
        expect(reply.statusCode).toBe(open ? 200 : 401);
        if (!open) expect(JSON.parse(reply.payload)).toMatchObject({ error: { code: 'unauthorized' } });
      }
    });

    it('is required before an unknown path is reported as such', async () => {
      expect((await guarded.server.app.inject('/nothing')).statusCode).toBe(401);
    });

    it('admits its holder', async () => {
      const headers = { authorization: 'bearer correct-horse' };
      expect((await guarded.server.app.inject({ url: '/rollout/status', headers })).statusCode).toBe(200);
    });
  });

  it('listens only on loopback without a token', async () => {
    const { store, blobs } = await bench.open();
    const deps = { store, blobs, clock: bench.clock, validateTask: () => {} };
    for (const host of ['0.0.0.0', '::', '192.168.1.1', 'my-host']) {
      await expect(createRolloutServer({ host, port: 0 }, deps)).rejects.toMatchObject({ code: 'setup_failed' });
    }
    await (await createRolloutServer({ host: '0.0.0.0', token: TOKEN }, deps)).close();
  });

  it('refuses a wrong configuration, and names the field', async () => {
    const { store, blobs } = await bench.open();
    const deps = { store, blobs, clock: bench.clock, validateTask: () => {} };
    await expect(createRolloutServer({ lease_seconds: -1 }, deps)).rejects.toMatchObject({ code: 'schema_violation' });
  });

  it('throws setup_failed when a port is in use', async () => {
    const { port } = new URL(await running.listen());
    const second = await bench.server({ port: Number(port) });
    await expect(second.listen()).rejects.toMatchObject({ code: 'setup_failed' });
  });

  it('serves the metrics of the given registry', async () => {
    expect((await running.server.app.inject('/metrics')).statusCode).toBe(404);
    const metricsRegistry = { contentType: 'text/plain; version=0.0.4', metrics: async () => 'floe_up 1\n' };
    const { store, blobs } = await bench.open();
    const server = await createRolloutServer(
      {},
      { store, blobs, clock: bench.clock, validateTask: () => {}, metricsRegistry },
    );
    const reply = await server.app.inject('/metrics');
    expect([reply.payload, reply.headers['content-type']]).toEqual(['floe_up 1\n', metricsRegistry.contentType]);
    await server.close();
  });

  it('returns the registered fields in reply to a registration', async () => {
    const reply = await new Caller(running.server).call('POST', '/nodes/register', { ...REGISTRATION, node_id: 'n7' });
    expect(reply).toMatchObject({ status: 200, body: { node_id: 'n7', healthy: true, leased_sessions: 0 } });
  });
});
