import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { json, vllmReply } from '../../engines/scripted-server.ts';
import { chatBody, Rig } from '../rig.ts';

let rig: Rig;
beforeEach(async () => {
  rig = await Rig.start();
});
afterEach(() => rig.stop());

function tcp(): Socket {
  const { hostname, port } = new URL(rig.proxy.origin);
  return connect({ host: hostname, port: Number(port), allowHalfOpen: true });
}

describe('the proxy', () => {
  it('closes although a client that requested an upgrade keeps its side of the connection open', async () => {
    const socket = tcp();
    socket.on('error', () => {});
    socket.write('GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
    await once(socket, 'data');
    try {
      await rig.proxy.close();
    } finally {
      socket.destroy();
    }
  });

  it('refuses an upgrade on a used connection with a JSON body and its length, and closes the connection', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    const socket = tcp();
    let text = '';
    socket.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
    const body = JSON.stringify(chatBody());
    socket.write(
      `POST /s/${key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    while (!text.includes('Hello.')) await once(socket, 'data');
    text = '';
    const headers = [
      'Host: x',
      'Connection: keep-alive, Upgrade',
      'Upgrade: websocket',
      'Sec-WebSocket-Version: 13',
      'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
      `Authorization: Bearer ${key}`,
    ];
    const ended = once(socket, 'end');
    socket.write(`GET /s/${key}/v1/responses HTTP/1.1\r\n${headers.join('\r\n')}\r\n\r\n`);
    await ended;
    socket.destroy();
    const [head = '', answer = ''] = text.split('\r\n\r\n');
    expect(head).toMatch(/^HTTP\/1\.1 426 Upgrade Required\r\n/);
    expect(head.toLowerCase()).toContain(`content-length: ${Buffer.byteLength(answer)}`);
    expect(JSON.parse(answer)).toMatchObject({ error: { message: expect.any(String), code: 'upgrade_required' } });
    expect(session).toMatchObject({ completionCount: 1, requests: 1 });
  });

  it('delivers the second reply of a pipelining client', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received));
    const ask = (content: string): string => {
      const body = JSON.stringify(chatBody({ messages: [{ role: 'user', content }] }));
      return `POST /s/${key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    };
    const socket = tcp();
    let text = '';
    socket.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
    socket.write(ask('one') + ask('two'));
    while (text.split('HTTP/1.1 200').length < 3) await once(socket, 'data');
    socket.destroy();
    await session.close();
    expect(session.completions().map(({ undelivered }) => undelivered)).toEqual([false, false]);
  });

  it('keeps the last error of a model call when other requests are refused', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    rig.server.onChat = ({ response }) => json(response, 500, { error: { message: 'boom' } });
    await rig.chat(key).reply;
    expect(session.failures.ofMain?.code).toBe('engine_error');
    await rig.send({ path: `/s/${key}/api/telemetry`, body: {} }).reply;
    expect(session.failures.ofMain?.code).toBe('engine_error');
  });
});
