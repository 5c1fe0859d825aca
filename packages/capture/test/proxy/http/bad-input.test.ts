import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { FloeError } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Dialect } from '../../../src/dialects/dialect.ts';
import { DIALECTS } from '../../../src/dialects/registry.ts';
import { MAX_BODY_BYTES } from '../../../src/proxy/http/body.ts';
import type { ProxySession } from '../../../src/proxy/session/session.ts';
import { eventText, vllmChunks } from '../../engines/scripted-server.ts';
import { ask } from '../dialect-bodies.ts';
import { type Reply, Rig, until } from '../rig.ts';

let rig: Rig;
let key: string;
let session: ProxySession;
beforeEach(async () => {
  rig = await Rig.start();
  key = rig.key();
  session = await rig.open({ key });
});
afterEach(() => rig.stop());

/** Describes the shape of a JSON value: the keys of objects, with every other value replaced by the name of its type. */
function shape(value: unknown): unknown {
  if (Array.isArray(value)) return 'array';
  if (typeof value !== 'object' || value === null) return typeof value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, shape(inner)]));
}

function expectRefusal(dialect: Dialect, reply: Reply, status: number): void {
  expect(reply.status).toBe(status);
  const own = dialect.encodeError(new FloeError('bad_request', 'x'));
  expect(reply.headers['content-type']).toBe('application/json');
  expect(shape(JSON.parse(reply.body).error.message)).toBe('string');
  expect(Object.keys(JSON.parse(reply.body))).toEqual(Object.keys(JSON.parse(own.body)));
  expect(Object.keys(JSON.parse(reply.body).error)).toEqual(Object.keys(JSON.parse(own.body).error));
}

function tcp(): Socket {
  const { hostname, port } = new URL(rig.proxy.origin);
  return connect({ host: hostname, port: Number(port) }).on('error', () => {});
}

describe.each(DIALECTS.map((dialect) => [dialect.name, dialect] as const))(
  'the proxy refuses, in the form of the dialect %s,',
  (name, dialect) => {
    const { path, body } = ask(name);
    const send = (raw: Buffer | string, headers = {}, at = `/s/${key}${path}`) =>
      rig.send({ path: at, raw, headers }).reply;
    const text = JSON.stringify(body);

    afterEach(async () => {
      const { status } = await rig.send({ path: `/s/${key}${path}`, body }).reply;
      expect(status).toBe(200);
      expect(session.completionCount).toBe(1);
      expect(rig.server.chats).toHaveLength(1);
    });

    it('half a request', async () => {
      const socket = tcp();
      socket.write(
        `POST /s/${key}${path} HTTP/1.1\r\nHost: x\r\nContent-Length: ${text.length}\r\n\r\n${text.slice(0, 20)}`,
      );
      await until(() => session.requests > 0);
      socket.destroy();
      await once(socket, 'close');
    });

    it('two different keys', async () => {
      expectRefusal(dialect, await send(text, { 'x-api-key': 'another' }), 400);
      expectRefusal(dialect, await send(text, { authorization: 'Bearer another' }), 400);
      expectRefusal(dialect, await send(text, {}, `/s/${key}${path}${path.includes('?') ? '&' : '?'}key=another`), 400);
    });

    it('no key, an unknown key, and the key of an ended session', async () => {
      expectRefusal(dialect, await send(text, {}, path), 401);
      expectRefusal(dialect, await send(text, {}, `/s/unknown${path}`), 401);
      const old = rig.key();
      const other = await rig.open({ key: old, sessionId: 'ses_2' });
      await other.close();
      expectRefusal(dialect, await send(text, {}, `/s/${old}${path}`), 410);
      expect(other.completions()).toEqual([]);
    });

    it('an unknown model', async () => {
      const asked = ask(name, { model: 'm'.repeat(3_000) });
      const reply = await rig.send({ path: `/s/${key}${asked.path}`, body: asked.body }).reply;
      expectRefusal(dialect, reply, 404);
      expect(reply.body.length).toBeLessThan(1_000);
    });

    it('invalid UTF-8', async () => {
      const bytes = Buffer.from(text.replace('hi', 'h\u0001'));
      bytes[bytes.indexOf(1)] = 0xff;
      expectRefusal(dialect, await send(bytes), 400);
    });

    it('a body just above the limit, with and without a declared length', async () => {
      const large = Buffer.alloc(MAX_BODY_BYTES + 1, 0x20);
      expectRefusal(dialect, await send(large), 413);
      expectRefusal(dialect, await send(large, { 'transfer-encoding': 'chunked' }), 413);
    });

    it('an object of a million keys', async () => {
      const keys = Array.from({ length: 1_000_000 }, (_, i) => `"k${i}":0`).join(',');
      const reply = await send(`{${keys}}`);
      expectRefusal(dialect, reply, reply.status);
      expect([400, 413]).toContain(reply.status);
    });

    it('a malformed request line or header', async () => {
      expectRefusal(dialect, await send(text, {}, `/s/${key}${path}%2f..`), 400);
      expectRefusal(dialect, await send(text, { 'content-encoding': 'lz4' }), 400);
    });
  },
);

describe('a client that does not read', () => {
  it.each(DIALECTS.map(({ name }) => name))(
    'is disconnected from a stream of %s, and the session continues',
    async (name) => {
      const { path, body } = ask(name, { stream: true });
      // The reply repeats this text six times. It does not fit into the socket buffers, so its delivery stops when the client does not
      // read.
      const content = 'y'.repeat(4 * 1024 * 1024);
      const ids = Array.from({ length: 12 }, (_, i) => i);
      rig.server.onChat = (received) => {
        received.response.writeHead(200, { 'content-type': 'text/event-stream' });
        for (const chunk of vllmChunks(received, { content: content.repeat(6), responseIds: ids }))
          received.response.write(eventText(chunk));
        received.response.end(eventText('[DONE]'));
      };
      const text = JSON.stringify(body);
      const socket = tcp();
      socket.pause();
      socket.write(`POST /s/${key}${path} HTTP/1.1\r\nHost: x\r\nContent-Length: ${text.length}\r\n\r\n${text}`);
      await until(() => session.completionCount > 0);
      const reply = await rig.send({ path: `/s/${key}${path}`, body: ask(name, { text: 'other', stream: true }).body })
        .reply;
      expect(reply.status).toBe(200);
      expect(reply.body.match(/y+/g)?.join('').length).toBeGreaterThanOrEqual(content.length * 6);
      socket.destroy();
      await session.close();
      expect(session.completions().map(({ undelivered }) => undelivered)).toEqual([true, false]);
    },
  );
});
