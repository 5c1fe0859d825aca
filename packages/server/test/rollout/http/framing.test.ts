import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { connect, type Socket } from 'node:net';
import { VirtualClock } from '@floe-rl/core';
import { ENVELOPE_TYPE } from '@floe-rl/core/protocol';
import type { RolloutStatus } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { watchBody } from '../../../src/rollout/http/request-bodies.ts';
import type { RolloutConfigInput } from '../../../src/rollout/index.ts';
import { METRICS, REGISTRATION, type Running, summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let defects: object[];
const sockets: Socket[] = [];
beforeEach(async () => {
  bench = await Workbench.create();
  defects = [];
});
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  await bench.dispose();
});

async function start(config: RolloutConfigInput = {}): Promise<Running> {
  const log = { info: () => {}, warn: () => {}, error: (fields: object) => defects.push(fields) };
  const running = await bench.server(config, { log });
  await running.listen();
  return running;
}

async function open(running: Running): Promise<Socket> {
  const url = new URL(await running.listen());
  const socket = connect(Number(url.port), url.hostname);
  sockets.push(socket);
  socket.on('error', () => {});
  await once(socket, 'connect');
  return socket;
}

async function untilClosed(socket: Socket): Promise<string> {
  let received = '';
  socket.on('data', (chunk) => {
    received += String(chunk);
  });
  if (!socket.closed) await once(socket, 'close');
  return received;
}

/** Returns the head of a request in which `node-1` delivers a result. `framing` is its content-length or transfer-encoding header. */
function delivery(framing: string): string {
  return `POST /nodes/node-1/results HTTP/1.1\r\nhost: localhost\r\ncontent-type: ${ENVELOPE_TYPE}\r\n${framing}\r\n\r\n`;
}

/** Sends raw bytes and closes the sending side, so that the server ends the connection after its answer. Returns the answer. */
async function raw(running: Running, bytes: string | Buffer): Promise<string> {
  const socket = await open(running);
  const answer = untilClosed(socket);
  socket.end(bytes);
  return answer;
}

const statuses = (answer: string): number[] =>
  [...answer.matchAll(/^HTTP\/1\.1 (\d{3}) /gm)].map((one) => Number(one[1]));

const HEAD = 'host: localhost\r\nconnection: close\r\n';

describe('the HTTP listener', () => {
  describe('concurrent results', () => {
    const MIB = 1024 * 1024;

    it('are accepted up to a total size, always at least one, and refused beyond it', async () => {
      const running = await start({ max_delivering_mb: 2 });
      const node = await running.node('node-1');
      const { task_id, session_ids } = await (await running.client()).submit(task());
      const [lease] = await node.lease({ slots: 1, wait_seconds: 0 });
      if (lease === undefined) throw new Error('there was no session to lease');
      expect(lease).toMatchObject({ task_id, session_id: session_ids[0] });
      const result = { summary: summaryOf(lease), trajectory: null, completions: null, artifacts: null };
      const deferred = async (): Promise<number | undefined> =>
        (await (await running.client()).status()).counters.rate_limited;

      const first = await open(running);
      first.write(delivery(`content-length: ${3 * MIB}\r\nexpect: 100-continue`));
      await once(first, 'data');
      await expect(node.deliverResult(result)).rejects.toMatchObject({ code: 'overloaded', retryable: true });
      const again = (await raw(running, delivery('content-length: 9'))).toLowerCase();
      expect(again).toContain('429 too many requests');
      expect(again).toContain('retry-after: 1');
      expect(await deferred()).toBe(2);

      first.destroy();
      await expect
        .poll(() => node.deliverResult(result).catch((error) => error.code))
        .toMatchObject({ requeued: false });
    });

    it('must have a content-length', async () => {
      const running = await start();
      expect(statuses(await raw(running, `${delivery('transfer-encoding: chunked')}0\r\n\r\n`))).toEqual([400]);
    });
  });

  describe('a request that is not unambiguous plain HTTP/1.1', () => {
    it.each([
      [
        'an upgrade to h2c',
        `GET /tasks HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n`,
        426,
      ],
      [
        'an upgrade to a web socket',
        'GET /events HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n',
        426,
      ],
      ['the preface of HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400],
      [
        'a length and chunks',
        `POST /tasks HTTP/1.1\r\n${HEAD}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n`,
        400,
      ],
      ['a length with a sign', `POST /tasks HTTP/1.1\r\n${HEAD}content-length: +4\r\n\r\nabcd`, 400],
      [
        'an encoding that is unknown',
        `POST /tasks HTTP/1.1\r\n${HEAD}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n`,
        400,
      ],
      ['two tokens', `GET /tasks HTTP/1.1\r\n${HEAD}authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n`, 400],
      ['two types', `POST /rollout/task/submit HTTP/1.1\r\n${HEAD}content-type: a/b\r\ncontent-type: c/d\r\n\r\n`, 400],
      ['an expectation that is unknown', `GET /tasks HTTP/1.1\r\n${HEAD}expect: anything\r\n\r\n`, 417],
      ['no host', 'GET /tasks HTTP/1.1\r\nconnection: close\r\n\r\n', 400],
      ['a host that is none', 'GET /tasks HTTP/1.1\r\nhost: a b\r\nconnection: close\r\n\r\n', 400],
      ['a host with a user', 'GET /tasks HTTP/1.1\r\nhost: root@localhost\r\nconnection: close\r\n\r\n', 400],
      ['an absolute target', `GET http://localhost/tasks HTTP/1.1\r\n${HEAD}\r\n`, 400],
      ['a tunnel', 'CONNECT localhost:22 HTTP/1.1\r\nhost: localhost\r\n\r\n', null],
      ['the asterisk', `OPTIONS * HTTP/1.1\r\n${HEAD}\r\n`, 400],
      ['a way out of the path', `GET /sessions/../tasks HTTP/1.1\r\n${HEAD}\r\n`, 400],
      ['an encoded way out', `GET /sessions/%2e%2e/tasks HTTP/1.1\r\n${HEAD}\r\n`, 400],
      ['a way out over backslashes', `GET /sessions/x%5c..%5ctasks HTTP/1.1\r\n${HEAD}\r\n`, 400],
      ['a NUL', `GET /sessions/a%00 HTTP/1.1\r\n${HEAD}\r\n`, 400],
      ['letters beyond ASCII', `GET /sessions/\xe4 HTTP/1.1\r\n${HEAD}\r\n`, 400],
      ['headers without end', `GET /tasks HTTP/1.1\r\n${HEAD}x: ${'y'.repeat(20_000)}\r\n\r\n`, 431],
      ['a folded header', `GET /tasks HTTP/1.1\r\n${HEAD}x: a\r\n b\r\n\r\n`, 400],
      ['a bare line feed in a header', `GET /tasks HTTP/1.1\nhost: localhost\nconnection: close\n\n`, 400],
    ])('is refused: %s', async (_, bytes, status) => {
      const running = await start();
      const answer = await raw(running, Buffer.from(bytes, 'latin1'));
      expect(statuses(answer)).toEqual(status === null ? [] : [status]);
      if (status !== null) expect(answer).toContain('{"error":{"code":"');
      expect(defects).toEqual([]);
    });

    it.each([
      [100, 200],
      [101, 400],
    ])('is refused when it has more than 100 header lines: %i lines', async (lines, status) => {
      const more = Array.from({ length: lines - 2 }, (_, i) => `x-${i}: 1\r\n`).join('');
      expect(statuses(await raw(await start(), `GET /health HTTP/1.1\r\n${HEAD}${more}\r\n`))).toEqual([status]);
    });

    it('is refused with the limit in bytes when its headers exceed it', async () => {
      const running = await start();
      const answer = await raw(running, `GET /tasks HTTP/1.1\r\n${HEAD}x: ${'y'.repeat(20_000)}\r\n\r\n`);
      expect(answer).toContain('the headers have more than 16384 bytes');
    });

    it('ends its connection, so that what follows it is not executed', async () => {
      const running = await start();
      const submit = JSON.stringify(task());
      const smuggled = `POST /rollout/task/submit HTTP/1.1\r\nhost: localhost\r\ncontent-length: ${submit.length}\r\n\r\n${submit}`;
      await raw(
        running,
        `POST /tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n${smuggled}`,
      );
      await raw(
        running,
        `GET /tasks HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: ${smuggled.length}\r\n\r\n${smuggled}`,
      );
      expect((await (await running.client()).status()).tasks.running).toBe(0);
    });
  });

  describe('slow clients', () => {
    it('are refused when the head does not arrive', async () => {
      const running = await start({ headers_timeout_seconds: 0.1 });
      const socket = await open(running);
      socket.write('GET /tasks HTTP/1.1\r\nhost: loc');
      expect(statuses(await untilClosed(socket))).toEqual([408]);
    });

    it.each([
      ['a body that stands still', 'content-length: 1000', '{'],
      ['chunks that stand still', 'transfer-encoding: chunked', '1\r\n{\r\n'],
    ])('are refused: %s', async (_, framing, begun) => {
      const running = await start({ body_idle_seconds: 0.05 });
      const socket = await open(running);
      socket.write(`POST /rollout/task/submit HTTP/1.1\r\nhost: localhost\r\n${framing}\r\n\r\n${begun}`);
      const answer = await untilClosed(socket);
      expect(statuses(answer)).toEqual([408]);
      expect(answer).toContain('too slowly');
      expect(answer).toContain('"retryable":true');
      expect(defects).toEqual([]);
    });

    it('are refused when a body trickles although it never stops, not when it flows', () => {
      for (const [bytesPerSecond, given] of [
        [50, 'up'],
        [1000, 'up'],
        [2000, 'time'],
      ] as const) {
        const clock = new VirtualClock();
        const request = { socket: { bytesRead: 500 }, complete: false, destroyed: false };
        let cut = false;
        watchBody(request as unknown as IncomingMessage, clock, 30_000, () => {
          cut = true;
        });
        for (let second = 0; second < 300 && !cut; second++) {
          request.socket.bytesRead += bytesPerSecond;
          clock.advance(1000);
        }
        expect(cut).toBe(given === 'up');
      }
    });

    it('are served when the body arrives in time or the call is held', async () => {
      const running = await start({ body_idle_seconds: 0.05 });
      const client = await running.client();
      const big = await client.submit(task({ instruction: 'x'.repeat(4 * 1024 * 1024) }));
      expect(big.session_ids).toHaveLength(1);
      const node = await running.node();
      await node.lease({ slots: 1, wait_seconds: 0 });
      // The server holds this lease request for 0.3 s, longer than the 0.05 s within which a body must make progress.
      expect(await node.lease({ slots: 1, wait_seconds: 0.3 })).toEqual([]);
    });

    it('are limited in idle connections for each address, and counted', async () => {
      const running = await start({ max_connections_per_address: 5 });
      const idle = await Promise.all(Array.from({ length: 8 }, () => open(running)));
      await Promise.all(idle.slice(-3).map((socket) => socket.closed || once(socket, 'close')));
      const status = await running.server.app.inject('/rollout/status');
      expect((JSON.parse(status.payload) as RolloutStatus).counters.connections_refused).toBe(3);
      // The server counts a closed connection until it has noticed the close, so the test asks the server how many connections are left.
      const left = new Promise((resolve) => running.server.app.server.getConnections((_, count) => resolve(count)));
      expect(await left).toBe(5);
      const [first] = idle;
      first?.end();
      if (first && !first.closed) await once(first, 'close');
      expect(statuses(await raw(running, `GET /health HTTP/1.1\r\n${HEAD}\r\n`))).toEqual([200]);
    });

    it('are limited in connections for all addresses together', async () => {
      const running = await start({ max_connections: 3 });
      const idle = await Promise.all(Array.from({ length: 5 }, () => open(running)));
      await Promise.all(idle.slice(-2).map((socket) => socket.closed || once(socket, 'close')));
      expect(idle.filter((socket) => socket.closed)).toHaveLength(2);
    });
  });

  /** Valid requests (method, path, body, content type), into which the test below inserts random errors. */
  const SEEDS: readonly [string, string, string, string?][] = [
    ['POST', '/rollout/task/submit', JSON.stringify(task({ num_samples: 2, metadata: { a: [1, { b: null }] } }))],
    ['GET', '/rollout/results?after=0&limit=3&trainer=a&consumer=b', ''],
    ['GET', '/rollout/task/some-task?results=full', ''],
    ['DELETE', '/rollout/task/some-task?register_if_missing=true', ''],
    ['POST', '/nodes/register', JSON.stringify({ ...REGISTRATION, node_id: 'n1' })],
    ['POST', '/nodes/n1/heartbeat', JSON.stringify({ metrics: METRICS, sessions: [] })],
    ['POST', '/nodes/n1/lease', JSON.stringify({ slots: 2 })],
    [
      'POST',
      '/nodes/n1/results',
      `{"header":${JSON.stringify(summaryOf({ session_id: 's', task_id: 't', sample_index: 0, attempt: 1, epoch: 1 }))},"parts":[]}\n`,
      ENVELOPE_TYPE,
    ],
    ['GET', '/sessions/ses_1/trajectory?attempt=1', ''],
    ['GET', '/tasks?status=running&limit=5', ''],
  ];

  const ODD = [
    '\0',
    '\r\n',
    '\n',
    '%',
    '%00',
    '../',
    '"',
    '{',
    '[',
    '\\ud800',
    '1e400',
    '-1',
    '__proto__',
    'NaN',
    ':',
    ' ',
    '\xff',
    '\ud83d',
    '9'.repeat(400),
    '['.repeat(5000),
    '&',
    '?',
    '#',
    ';',
  ];

  const broken = fc.record({
    seed: fc.constantFrom(...SEEDS),
    edits: fc.array(
      fc.record({
        at: fc.double({ min: 0, max: 1, noNaN: true }),
        remove: fc.nat(12),
        insert: fc.oneof(fc.constantFrom(...ODD), fc.string({ unit: 'binary', maxLength: 6 }), fc.constant('')),
        where: fc.constantFrom('body', 'url'),
      }),
      { minLength: 1, maxLength: 4 },
    ),
  });

  function edited(text: string, edits: readonly { at: number; remove: number; insert: string }[]): string {
    let out = text;
    for (const { at, remove, insert } of edits) {
      const start = Math.floor(at * out.length);
      out = out.slice(0, start) + insert + out.slice(start + remove);
    }
    return out;
  }

  it('answers thousands of broken requests with a refusal each, never a failure, and stays healthy', async () => {
    const running = await start();
    const { app } = running.server;
    const seen = new Map<number, number>();
    await fc.assert(
      fc.asyncProperty(broken, async ({ seed: [method, url, body, type], edits }) => {
        const target = `/${edited(
          url,
          edits.filter((edit) => edit.where === 'url'),
        ).slice(1)}`;
        const payload = edited(
          body,
          edits.filter((edit) => edit.where === 'body'),
        );
        const reply = await app.inject({
          method: method as 'GET',
          url: { pathname: target.split('?')[0] ?? '/', query: target.split('?').slice(1).join('?') },
          headers: { 'content-type': type ?? 'application/json' },
          ...(payload === '' ? {} : { payload: Buffer.from(payload) }),
        });
        seen.set(reply.statusCode, (seen.get(reply.statusCode) ?? 0) + 1);
        expect(reply.statusCode).toBeLessThan(500);
        if (reply.statusCode >= 400) expect(JSON.parse(reply.payload)).toHaveProperty('error.code');
      }),
      { numRuns: 2500 },
    );
    // Most of the requests were indeed refused, so the random errors did make them invalid.
    expect((seen.get(400) ?? 0) + (seen.get(404) ?? 0) + (seen.get(422) ?? 0)).toBeGreaterThan(1500);
    expect(defects).toEqual([]);
    const status = await app.inject('/rollout/status');
    expect((JSON.parse(status.payload) as RolloutStatus).counters.store_failures).toBe(0);
  }, 120_000);

  it('answers bytes that are hardly HTTP with a refusal or nothing, and continues', async () => {
    const running = await start({ headers_timeout_seconds: 0.2 });
    const whole = SEEDS.map(
      ([method, url, body]) => `${method} ${url} HTTP/1.1\r\n${HEAD}content-length: ${body.length}\r\n\r\n${body}`,
    );
    const mangled = fc.tuple(fc.constantFrom(...whole), broken).map(([text, { edits }]) => edited(text, edits));
    await fc.assert(
      fc.asyncProperty(fc.array(mangled, { minLength: 12, maxLength: 12 }), async (texts) => {
        const answers = await Promise.all(texts.map((text) => raw(running, Buffer.from(text, 'latin1'))));
        for (const answer of answers) for (const status of statuses(answer)) expect(status).toBeLessThan(500);
      }),
      { numRuns: 60 },
    );
    expect(defects).toEqual([]);
    expect(statuses(await raw(running, `GET /health HTTP/1.1\r\n${HEAD}\r\n`))).toEqual([200]);
  }, 120_000);

  it('refuses JSON that is disproportionately expensive to parse', async () => {
    const { app } = (await start()).server;
    const submit = (payload: string) => app.inject({ method: 'POST', url: '/rollout/task/submit', payload });
    const wide = JSON.stringify({
      ...task(),
      metadata: Object.fromEntries(Array.from({ length: 250_000 }, (_, i) => [i, 0])),
    });
    for (const [payload, status] of [
      [`${'['.repeat(300)}${']'.repeat(300)}`, 400],
      ['['.repeat(1_000_000), 400],
      [wide, 413],
    ] as const) {
      expect((await submit(payload)).statusCode).toBe(status);
    }
    const polluted = await submit(JSON.stringify(task()).replace('{', '{"__proto__":{"polluted":1},'));
    expect(polluted.statusCode).toBe(422);
    const inside = await submit(
      JSON.stringify(task({ metadata: {} })).replace('"metadata":{}', '"metadata":{"__proto__":{"polluted":1}}'),
    );
    expect(inside.statusCode).toBeLessThan(500);
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });
});
