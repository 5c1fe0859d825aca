import { connect } from 'node:net';
import { VirtualClock } from '@floe-rl/core';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { MAX_BODY_BYTES } from '../../../src/proxy/http/body.ts';
import { chatBody, Rig } from '../rig.ts';

let rig: Rig;
let clock: VirtualClock;
let key: string;
beforeEach(async () => {
  clock = new VirtualClock();
  rig = await Rig.start(clock);
  key = rig.key();
  await rig.open({ key });
});
afterEach(() => rig.stop());

/** Sends a text over a new TCP connection to the proxy, and returns all bytes that the proxy sends until it closes the connection. */
function exchange(text: string, onOpen: () => void = () => {}): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(Number(new URL(rig.proxy.origin).port), '127.0.0.1', () => {
      socket.write(text);
      onOpen();
    });
    let received = '';
    socket.setEncoding('utf8');
    socket.on('data', (chunk: string) => {
      received += chunk;
    });
    socket.on('close', () => resolve(received));
    socket.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'ECONNRESET' && error.code !== 'EPIPE') reject(error);
    });
  });
}

const body = JSON.stringify(chatBody());
const post = (target: string, headers: string[] = ['Host: x'], version = '1.1'): string =>
  `POST ${target} HTTP/${version}\r\n${[...headers, 'Connection: close', `Content-Length: ${body.length}`].join('\r\n')}\r\n\r\n${body}`;

describe('a request that two parsers could interpret differently', () => {
  const path = (): string => `/s/${key}/v1/chat/completions`;
  it.each<[string, () => string, RegExp]>([
    ['an ordinary request, which is served', () => post(path()), /^HTTP\/1.1 200 /],
    ['two Host headers', () => post(path(), ['Host: x', 'Host: x']), /^HTTP\/1.1 400 .*more than one Host/s],
    ['no Host header', () => post(path(), []), /^HTTP\/1.1 400 .*"message":"no Host/s],
    ['an absolute target', () => post(`http://x${path()}`), /^HTTP\/1.1 400 .*not a path/s],
    ['an encoded separator', () => post(`/s/${key}/v1/..%2fv1/chat/completions`), /^HTTP\/1.1 400 .*dot segments/s],
    ['dot segments', () => post(`/s/${key}/v1/../v1/chat/completions`), /^HTTP\/1.1 400 .*dot segments/s],
    ['a backslash', () => post(`/s/${key}\\v1/chat/completions`), /^HTTP\/1.1 400 /],
    [
      'more headers than anybody sends',
      () => post(path(), ['Host: x', ...Array.from({ length: 201 }, (_, i) => `x-${i}: 1`)]),
      /^HTTP\/1.1 (400 .*200 headers|431 )/s,
    ],
    ['another protocol version', () => post(path(), ['Host: x'], '2.0'), /^HTTP\/1.1 400 /],
    ['the HTTP/2 preface', () => 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', /^HTTP\/1.1 400 /],
    ['length and chunks at once', () => post(path(), ['Host: x', 'Transfer-Encoding: chunked']), /^HTTP\/1.1 400 /],
    ['a body on GET', () => post(`/s/${key}/v1/models`).replace('POST', 'GET'), /^HTTP\/1.1 400 .*GET with a body/s],
    [
      'a body that is not in its encoding',
      () => post(path(), ['Host: x', 'Content-Encoding: zstd']),
      /^HTTP\/1.1 400 .*zstd/s,
    ],
    [
      'an upgrade',
      () => 'GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n',
      /^HTTP\/1.1 426 /,
    ],
    [
      'two different Authorization headers',
      () => post('/v1/chat/completions', ['Host: x', `Authorization: Bearer ${key}`, 'Authorization: Bearer other']),
      /^HTTP\/1.1 400 .*two different Authorization/s,
    ],
    [
      'two different x-api-key headers',
      () => post('/v1/chat/completions', ['Host: x', `x-api-key: ${key}`, 'x-api-key: other']),
      /^HTTP\/1.1 400 .*two different keys/s,
    ],
    [
      'two different keys in the query',
      () => post(`/v1/chat/completions?key=${key}&key=other`),
      /^HTTP\/1.1 400 .*two different keys/s,
    ],
    [
      'an expectation that is unknown',
      () => post(path(), ['Host: x', 'Expect: anything']),
      /^HTTP\/1.1 417 .*"message":"only `Expect: 100-continue`/s,
    ],
    ['CONNECT', () => 'CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n', /^$/],
  ])('is refused, unlike an ordinary one: %s', async (name, text, answer) => {
    expect(await exchange(text())).toMatch(answer);
    expect(rig.server.chats).toHaveLength(name.startsWith('an ordinary') ? 1 : 0);
  });
});

it('an Authorization header of another scheme is not read as a key', async () => {
  const headers = ['Host: x', `x-api-key: ${key}`, 'Authorization: Basic dTpw'];
  expect(await exchange(post('/v1/chat/completions', headers))).toMatch(/^HTTP\/1.1 200 /);
});

it('a key that is sent twice in the same header is accepted', async () => {
  const twice = ['Host: x', `Authorization: Bearer ${key}`, `Authorization: Bearer ${key}`];
  expect(await exchange(post('/v1/chat/completions', twice))).toMatch(/^HTTP\/1.1 200 /);
});

it('an empty key next to the session key is ignored', async () => {
  const headers = ['Host: x', `Authorization: Bearer ${key}`, 'x-api-key:'];
  expect(await exchange(post('/v1/chat/completions?key=', headers))).toMatch(/^HTTP\/1.1 200 /);
});

describe('bodies', () => {
  /** Like `exchange`, but advances the virtual clock until the proxy closes the connection. */
  async function patiently(text: string): Promise<string> {
    let closed = false;
    const reply = exchange(text).finally(() => {
      closed = true;
    });
    while (!closed) {
      clock.advance(10_000);
      await new Promise((resolve) => setImmediate(resolve));
    }
    return reply;
  }

  it('are refused when they stop in the middle', async () => {
    const sent = post(`/s/${key}/v1/chat/completions`).replace(/Content-Length: \d+/, 'Content-Length: 1000');
    expect(await patiently(sent)).toMatch(/^HTTP\/1.1 400 .*the body stopped/s);
  });

  it('are refused unread when they declare too large a length', async () => {
    const sent = post(`/s/${key}/v1/chat/completions`).replace(
      /Content-Length: \d+/,
      `Content-Length: ${MAX_BODY_BYTES + 1}`,
    );
    expect(await patiently(sent)).toMatch(/^HTTP\/1.1 413 /);
  });

  it.each([
    ['not JSON', '{', 400, 'not valid JSON'],
    ['nested beyond reason', '['.repeat(5_000), 400, 'nested deeper'],
    ['no object', '[]', 400, 'chat completion request'],
    ['empty', '', 400, 'not valid JSON'],
    ['a wrong type', JSON.stringify(chatBody({ messages: [{ role: 'user', content: 5 }] })), 400, 'messages.0.content'],
    [
      'an unknown role',
      JSON.stringify(chatBody({ messages: [{ role: 'boss', content: 'x' }] })),
      400,
      'messages.0.role',
    ],
    ['several choices', JSON.stringify(chatBody({ n: 2 })), 400, 'n: only one choice'],
  ])('are refused with the reason when they are %s', async (_, text, status, reason) => {
    const reply = await rig.send({ path: `/s/${key}/v1/chat/completions`, body: text }).reply;
    expect(reply.status).toBe(status);
    expect(JSON.parse(reply.body).error.message).toContain(reason);
    expect(rig.server.chats).toEqual([]);
  });

  it('are refused when they contain invalid UTF-8', async () => {
    const reply = await exchange(post(`/s/${key}/v1/chat/completions`).replace('"hi"', '"h\u0001"'));
    expect(reply).toMatch(/^HTTP\/1.1 400 /);
  });
});

describe('random bytes', () => {
  it('are refused as a body in the form of the dialect', async () => {
    const bytes = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.json({ maxDepth: 4 }),
      fc.constant(`{"a":${'['.repeat(300)}`),
    );
    const paths = fc.constantFrom('/v1/chat/completions', '/v1/messages', '/v1/messages/count_tokens');
    await fc.assert(
      fc.asyncProperty(paths, bytes, async (path, text) => {
        const reply = await rig.send({ path: `/s/${key}${path}`, body: text }).reply;
        expect(reply.status).toBe(400);
        expect(JSON.parse(reply.body).error.message).toBeTruthy();
      }),
      { numRuns: 200 },
    );
    expect(rig.server.chats).toEqual([]);
  });
});
