import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { json } from '../../engines/scripted-server.ts';
import { chatBody, Rig } from '../rig.ts';

let rig: Rig;
beforeEach(async () => {
  rig = await Rig.start();
});
afterEach(() => rig.stop());

const MB = 1024 * 1024;

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

describe('an agent that floods its proxy', () => {
  it('gets a bounded number of connections', async () => {
    const socketPath = join(tmpdir(), `floe-flood-${process.pid}.sock`);
    await rig.open({ socketPath });
    const sockets = Array.from({ length: 300 }, () => connect(socketPath).on('error', () => {}));
    // The limit is 256 connections per session. The test waits until the proxy has closed the connections beyond it.
    let closed = 0;
    await new Promise<void>((resolve) => {
      for (const socket of sockets) {
        socket.resume().once('close', () => {
          if (++closed === 300 - 256) resolve();
        });
      }
    });
    for (const socket of sockets) socket.destroy();
  });

  it('is refused a body as soon as its concurrent bodies are too large together', async () => {
    const key = rig.key();
    await rig.open({ key });
    const { hostname, port } = new URL(rig.proxy.origin);
    const head = `POST /s/${key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ${60 * MB}\r\n\r\n`;
    const sockets: Socket[] = [];
    const answers: Promise<string>[] = [];
    for (let i = 0; i < 3; i++) {
      const socket = connect({ host: hostname, port: Number(port) }).on('error', () => {});
      sockets.push(socket);
      answers.push(once(socket, 'data').then(([data]) => String(data)));
      socket.write(head);
      // The last byte of each request body is not sent, so that every body stays unfinished.
      socket.write(Buffer.alloc(60 * MB - 1, 0x20));
    }
    const answer = await Promise.race(answers);
    expect(answer).toMatch(/^HTTP\/1\.1 429 /);
    for (const socket of sockets) socket.destroy();
    // The bytes of unfinished request bodies are released when their connections close, so the session may send another request.
    const reply = rig.chat(key).reply;
    expect((await reply).status).toBe(200);
  });

  it('is refused requests to count tokens when too many of them run concurrently', async () => {
    const key = rig.key();
    await rig.open({ key });
    rig.server.onTokenize = () => {};
    const count = (): Promise<number> =>
      rig
        .send({ path: `/s/${key}/v1/messages/count_tokens`, body: chatBody() })
        .reply.then(({ status }) => status)
        .catch(() => 0);
    expect(await Promise.race(Array.from({ length: 65 }, count))).toBe(429);
  });

  it('is refused a request to count tokens when those that run are too large together', async () => {
    const key = rig.key();
    await rig.open({ key });
    const raw = Buffer.from(JSON.stringify(chatBody({ messages: [{ role: 'user', content: 'x'.repeat(50 * MB) }] })));
    const count = (): Promise<number | 'running'> => {
      const isRunning = new Promise<'running'>((resolve) => {
        rig.server.onTokenize = () => resolve('running');
      });
      return Promise.race([
        isRunning,
        rig.send({ path: `/s/${key}/v1/messages/count_tokens`, raw }).reply.then(({ status }) => status),
      ]);
    };
    expect([await count(), await count(), await count()]).toEqual(['running', 'running', 429]);
  }, 240_000);

  it('does not fill the memory with refused requests', async () => {
    const key = rig.key();
    await rig.open({ key, callRules: 'opencode' });
    rig.server.onChat = ({ response }) => json(response, 400, { error: { message: 'too long' } });
    const send = async (number: number): Promise<void> => {
      const headers = { 'x-session-id': `t${number}`, 'x-parent-session-id': 'p' };
      const content = `${number} `.repeat(3 * MB);
      expect((await rig.chat(key, { messages: [{ role: 'user', content }] }, headers).reply).status).toBe(400);
      // Removes the requests that the test's engine has received, so that they do not count as memory of the proxy.
      rig.server.received.length = 0;
    };
    collectGarbage();
    const before = process.memoryUsage().heapUsed;
    for (let i = 1; i <= 40; i++) await send(i);
    collectGarbage();
    expect((process.memoryUsage().heapUsed - before) / MB).toBeLessThan(250);
  }, 240_000);
});
