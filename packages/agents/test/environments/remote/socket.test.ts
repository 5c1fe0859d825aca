import { VirtualClock } from '@floe-rl/core';
import { afterEach, describe, expect, it } from 'vitest';
import { RemoteSocket } from '../../../src/environments/remote/socket.ts';
import { type Connection, type SocketServer, startSocketServer } from './socket-server.ts';

let server: SocketServer | null = null;

afterEach(async () => {
  await server?.close();
  server = null;
});

const HEARTBEAT_MS = 20_000;

async function connect(
  clock: VirtualClock,
  signal = new AbortController().signal,
): Promise<[RemoteSocket, Connection]> {
  server = await startSocketServer({});
  const service = { url: server.url, key: null, label: 'the server' };
  const socket = await RemoteSocket.connect(service, '/ws', { signal, timeoutMs: 5_000, clock });
  const [connection] = server.connections;
  if (connection === undefined) throw new Error('no connection');
  return [socket, connection];
}

describe('RemoteSocket', () => {
  it('fails when three heartbeats in a row have no answer', async () => {
    const clock = new VirtualClock();
    const [socket, connection] = await connect(clock);
    connection.answersPings = false;
    const answer = socket.request({ type: 'step' }, 1_000_000);
    const failed = expect(answer).rejects.toMatchObject({
      code: 'peer_unreachable',
      message: 'the server answered none of 3 heartbeats',
    });
    for (let beat = 0; beat < 4; beat++) clock.advance(HEARTBEAT_MS);
    await failed;
    await expect(socket.request({ type: 'step' }, 1_000)).rejects.toMatchObject({ code: 'peer_unreachable' });
  });

  it('stays connected while heartbeats are answered', async () => {
    const clock = new VirtualClock();
    const [socket, connection] = await connect(clock);
    for (let beat = 1; beat <= 5; beat++) {
      clock.advance(HEARTBEAT_MS);
      const answer = socket.request({ type: 'state' }, 1_000_000);
      connection.send({ beat });
      expect(await answer).toEqual({ beat });
    }
    expect(connection.pings).toBeGreaterThan(3);
    await socket.close({ type: 'close' });
  });

  it('sends a lone surrogate of the policy as U+FFFD', async () => {
    const [socket, connection] = await connect(new VirtualClock());
    const answer = socket.request({ type: 'step', data: { '\ude00': 'cut \ud83d', whole: '😀' } }, 1_000_000);
    while (connection.received.length === 0) await new Promise((resolve) => setImmediate(resolve));
    expect(connection.received).toEqual([{ type: 'step', data: { '\ufffd': 'cut \ufffd', whole: '😀' } }]);
    connection.send({});
    await answer;
    await socket.close({ type: 'close' });
  });

  it('rejects with the reason of its signal, and closes twice', async () => {
    const controller = new AbortController();
    const [socket] = await connect(new VirtualClock(), controller.signal);
    const answer = socket.request({ type: 'step' }, 1_000_000);
    controller.abort(new Error('enough'));
    await expect(answer).rejects.toThrow('enough');
    await socket.close({ type: 'close' });
    await socket.close({ type: 'close' });
  });
});
