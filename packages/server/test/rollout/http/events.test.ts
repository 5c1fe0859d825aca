import { once } from 'node:events';
import { connect } from 'node:net';
import { PassThrough } from 'node:stream';
import { VirtualClock } from '@floe-rl/core';
import type { RolloutEvent } from '@floe-rl/core/schema';
import type { FastifyReply } from 'fastify';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { MemoryDatabase } from '../../../../../verify/control-plane/memory-store/database.ts';
import { MemoryStore } from '../../../../../verify/control-plane/memory-store/store.ts';
import type { RolloutContext } from '../../../src/rollout/context.ts';
import { EventBus, eventFeed } from '../../../src/rollout/events.ts';
import { streamEvents } from '../../../src/rollout/http/event-stream.ts';
import { MemoryBlobs } from '../memory-blobs.ts';
import { type Running, summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let running: Running;
let warnings: string[];
let database: MemoryDatabase;
beforeEach(async () => {
  warnings = [];
  bench = await Workbench.create();
  const log = { info: () => {}, warn: (_: object, message: string) => warnings.push(message), error: () => {} };
  database = new MemoryDatabase();
  const inMemory = { store: new MemoryStore(database), blobs: new MemoryBlobs() };
  running = await bench.server({ event_heartbeat_seconds: 0.02 }, { log, ...inMemory });
});
afterEach(() => bench.dispose());

/** Opens an event stream on a raw socket. `until` waits until `text` has arrived, and resolves to the received text up to its end. */
async function listenRaw(): Promise<{ socket: ReturnType<typeof connect>; until(text: string): Promise<string> }> {
  const url = new URL(await running.listen());
  const socket = connect(Number(url.port), url.hostname);
  socket.write('GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n');
  let received = '';
  socket.on('data', (chunk) => {
    received += String(chunk);
  });
  const until = async (text: string): Promise<string> => {
    let at = received.indexOf(text);
    for (; at < 0; at = received.indexOf(text)) await once(socket, 'data');
    const before = received.slice(0, at + text.length);
    received = received.slice(before.length);
    return before;
  };
  expect(await until(': connected')).toContain('content-type: text/event-stream');
  return { socket, until };
}

describe('GET /events', () => {
  it('streams the life of a session in order, once it is committed', async () => {
    const client = await running.client();
    const controller = new AbortController();
    const events: RolloutEvent[] = [];
    const node = await running.node();
    const stream = client.events(controller.signal);
    const first = stream.next();
    // The server has answered a later request, so it has opened the event stream by now.
    await client.status();
    const { task_id, session_ids } = await client.submit(task());
    const [lease] = await node.lease({ slots: 1, wait_seconds: 5 });
    if (lease === undefined) throw new Error('a session was queued');
    await node.deliverResult({ summary: summaryOf(lease), trajectory: null, completions: null, artifacts: null });
    const { value } = await first;
    if (value) events.push(value);
    for await (const event of stream) {
      events.push(event);
      if (event.type === 'task.completed') break;
    }
    const session = { type: 'session.state_changed', task_id, session_id: session_ids[0] };
    expect(events).toMatchObject([
      { type: 'task.created', task_id, total_sessions: 1 },
      { ...session, status: 'LEASED', outcome: null },
      { ...session, status: 'COMPLETED', outcome: 'completed', reward: 1 },
      { type: 'task.updated', task_id, completed_sessions: 1, total_sessions: 1 },
      { type: 'task.completed', task_id, status: 'completed' },
    ]);
  });

  it('sends heartbeats on a quiet stream', async () => {
    const { socket, until } = await listenRaw();
    expect(await until(': heartbeat')).toContain(': heartbeat');
    socket.destroy();
  });

  it('closes the stream of a client that does not read, and serves the others', async () => {
    const stuck = await listenRaw();
    const reading = await listenRaw();
    stuck.socket.pause();
    const closed = once(stuck.socket, 'close');
    const otherServer = new MemoryStore(database);
    // The server closes the stream of `stuck` only when much data waits for it. The events must first fill the socket buffers of the operating
    // system and then the buffers of the server.
    for (let round = 0; warnings.length === 0; round++) {
      const created = { type: 'task.created', task_id: `long-${'x'.repeat(110)}`, total_sessions: 1 };
      const last = { ...created, task_id: `last-${round}` };
      const events = [...Array<object>(10_000).fill(created), last];
      otherServer.announce(JSON.stringify({ events, topics: [] }));
      await reading.until(last.task_id);
    }
    expect(warnings).toEqual(['closed an event stream because its client reads too slowly']);
    stuck.socket.resume();
    await closed;
    reading.socket.destroy();
  });

  it('sends no heartbeats to a client that has disconnected', async () => {
    const clock = new VirtualClock();
    const feed = eventFeed(new EventBus());
    const raw = Object.assign(new PassThrough(), { writeHead: () => {} });
    let heartbeats = 0;
    const frames = { first: () => ': connected\n\n', heartbeat: () => `: ${heartbeats++}\n\n` };
    const closing = new AbortController().signal;
    const context = { clock, closing, config: { event_heartbeat_seconds: 1 } } as unknown as RolloutContext;
    streamEvents(context, feed, { raw, hijack: () => {} } as unknown as FastifyReply, frames);
    clock.advance(1000);
    expect([heartbeats, feed.isFollowed]).toEqual([1, true]);
    raw.destroy();
    await once(raw, 'close');
    clock.advance(10_000);
    expect([heartbeats, feed.isFollowed]).toEqual([1, false]);
  });

  it('ends the streams when the server closes', async () => {
    const { socket } = await listenRaw();
    const ended = once(socket, 'close');
    await running.server.close();
    await ended;
    expect(socket.readableEnded || socket.destroyed).toBe(true);
  });
});
