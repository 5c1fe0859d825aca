import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { DRAIN_LIMIT_MS, onResponseClosed } from '../../../src/proxy/http/responses.ts';
import { ABANDON_GRACE_MS } from '../../../src/proxy/session/call.ts';
import { eventText, type Received, vllmChunks } from '../../engines/scripted-server.ts';
import { chatBody, Rig, until, WatchedClock } from '../rig.ts';

let rig: Rig;
let clock: WatchedClock;
beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock);
});
afterEach(() => rig.stop());

function post(key: string, body: object): string {
  const text = JSON.stringify(body);
  return `POST /s/${key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ${text.length}\r\n\r\n${text}`;
}

describe('a client that disconnects', () => {
  it.each([false, true])('ends its pipelined calls that wait for the first one, stream: %s', async (stream) => {
    const key = rig.key();
    const session = await rig.open({ key });
    const held: Received[] = [];
    rig.server.onChat = (received) => void held.push(received);
    const { hostname, port } = new URL(rig.proxy.origin);
    const socket = connect({ host: hostname, port: Number(port) }).on('error', () => {});
    const bodies = ['a', 'b', 'c'].map((content) => chatBody({ stream, messages: [{ role: 'user', content }] }));
    socket.write(bodies.map((body) => post(key, body)).join(''));
    await rig.server.arrived(3);
    let ended = 0;
    for (const { response } of held) response.once('close', () => ended++);
    socket.destroy();
    while (ended < 3) {
      await new Promise((resolve) => setImmediate(resolve));
      clock.advance(ABANDON_GRACE_MS);
    }
    expect(session.completions()).toEqual([]);
    expect(session.failures.ofMain).toBeNull();
  });
});

describe('a client that disconnects from a stream', () => {
  it('uses up a turn when it has read a part of the reply', async () => {
    const key = rig.key();
    const session = await rig.open({ key, maxTurns: 1 });
    const held = new Promise<Received>((resolve) => {
      rig.server.onChat = resolve;
    });
    const sent = rig.chat(key, { stream: true });
    const received = await held;
    const { response } = received;
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const chunks = vllmChunks(received, { content: 'The answer is 42. Why?' });
    response.write(chunks.slice(0, 3).map(eventText).join(''));
    expect(await sent.firstBytes).toContain('The answer');
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    const aborted = once(response, 'close');
    sent.abort();
    await noticed;
    clock.advance(ABANDON_GRACE_MS);
    await aborted;
    const { status } = await rig.chat(key, { messages: [{ role: 'user', content: 'and now?' }] }).reply;
    expect(status).toBe(400);
    expect(session).toMatchObject({ completionCount: 0, failures: { refusal: { code: 'turn_limit' } } });
  });
});

describe('the end of a response', () => {
  /**
   * Starts an HTTP server and connects a client that sends a request. Returns the server's response object, the client's socket, and a
   * function that closes the server.
   */
  async function open(): Promise<{ response: ServerResponse; client: Socket; close: () => void }> {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const client = connect((server.address() as AddressInfo).port, '127.0.0.1').on('error', () => {});
    client.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
    const [, response] = (await once(server, 'request')) as [unknown, ServerResponse];
    return { response, client, close: () => server.close() };
  }

  it('is reported once', async () => {
    const { response, client, close } = await open();
    let calls = 0;
    const gone = new Promise<void>((resolve) => {
      onResponseClosed(response, () => {
        calls++;
        resolve();
      });
    });
    const closed = once(response.req.socket, 'close');
    client.destroy();
    await Promise.all([gone, closed]);
    expect(calls).toBe(1);
    close();
  });

  it('is reported when it happened before the callback was registered', async () => {
    const { response, client, close } = await open();
    const closed = once(response, 'close');
    client.destroy();
    await closed;
    let calls = 0;
    onResponseClosed(response, () => calls++);
    expect(calls).toBe(1);
    close();
  });
});

describe('a client that disconnects while it sends a body', () => {
  it('gets no error response, because the proxy would then read the rest of the body', async () => {
    const key = rig.key();
    const session = await rig.open({ key });
    const schedule = vi.spyOn(clock, 'schedule');
    const { hostname, port } = new URL(rig.proxy.origin);
    const socket = connect({ host: hostname, port: Number(port) }).on('error', () => {});
    const head = ['host: x', 'content-type: application/json', 'content-length: 100'];
    socket.write(`POST /s/${key}/v1/chat/completions HTTP/1.1\r\n${head.join('\r\n')}\r\n\r\n{`);
    await until(() => session.requests > 0);
    const release = vi.spyOn(session.bodyBudget, 'release');
    socket.destroy();
    await until(() => release.mock.calls.length > 0);
    await new Promise((resolve) => setImmediate(resolve));
    expect(schedule.mock.calls.map(([delayMs]) => delayMs)).not.toContain(DRAIN_LIMIT_MS);
  });
});
