import { FloeError } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ABANDON_GRACE_MS } from '../../../src/proxy/session/call.ts';
import { json, type Received, vllmReply } from '../../engines/scripted-server.ts';
import { chatBody, Rig, until, WatchedClock } from '../rig.ts';

let rig: Rig;
let clock: WatchedClock;
let key: string;
beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock);
  key = rig.key();
});
afterEach(() => rig.stop());

function hold(): Promise<Received> {
  return new Promise((resolve) => {
    rig.server.onChat = resolve;
  });
}

describe('a stream without deltas', () => {
  it('starts before the reply and has the heartbeats of its dialect', async () => {
    await rig.open({ key });
    const held = hold();
    const sent = rig.send({ path: `/s/${key}/v1/messages`, body: { ...chatBody(), stream: true } });
    const received = await held;
    clock.advance(1_000);
    expect(await sent.headers).toMatchObject({ 'content-type': 'text/event-stream; charset=utf-8' });
    clock.advance(9_000);
    expect(await sent.firstBytes).toMatch(/^event: message_start\n/);
    clock.advance(20_000);
    json(received.response, 200, vllmReply(received));
    const { body } = await sent.reply;
    expect(body).toContain('event: ping\ndata: {"type":"ping"}\n\n');
    expect(body.match(/event: ping\n/g)).toHaveLength(2);
    expect(body.match(/event: message_start\n/g)).toHaveLength(1);
    clock.advance(60_000);
  });

  it('has empty deltas as heartbeats in the chat dialect', async () => {
    await rig.open({ key });
    const held = hold();
    const sent = rig.chat(key, { stream: true, stream_options: { include_usage: true } });
    const received = await held;
    clock.advance(10_000);
    expect(await sent.firstBytes).toMatch(/^data: .*"delta":{"role":"assistant","content":""}/);
    clock.advance(10_000);
    await until(() => sent.received().includes('"delta":{},"logprobs":null,"finish_reason":null'));
    json(received.response, 200, vllmReply(received));
    const events = (await sent.reply).body.split('\n\n').map((line) => line.replace('data: ', ''));
    expect(events.slice(-2)).toEqual(['[DONE]', '']);
    expect(JSON.parse(events.at(-3) ?? '')).toMatchObject({ choices: [], usage: { total_tokens: 7 } });
  });

  it('contains a failure as an event once it has begun', async () => {
    const session = await rig.open({ key });
    const held = hold();
    const sent = rig.send({ path: `/s/${key}/v1/messages`, body: { ...chatBody(), stream: true } });
    const received = await held;
    clock.advance(1_000);
    await sent.headers;
    json(received.response, 400, { error: { message: 'maximum context length' } });
    const reply = await sent.reply;
    expect(reply.status).toBe(200);
    expect(reply.body).toBe(
      'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: maximum context length"}}\n\n',
    );
    expect(session.failures.ofMain?.code).toBe('engine_rejected');
  });
});

describe('a reply to a slow client or engine', () => {
  it('begins a silent Responses stream with one start of the reply', async () => {
    rig.journal.hold = true;
    await rig.open({ key });
    const body = { model: 'policy', stream: true, input: 'hi' };
    const sent = rig.send({ path: `/s/${key}/v1/responses`, body });
    await rig.journal.waiting();
    clock.advance(20_000);
    expect(await sent.firstBytes).toMatch(/^event: response\.created\n/);
    rig.journal.held[0]?.commit();
    const events = (await sent.reply).body.match(/^event: .*$/gm) ?? [];
    expect(events.filter((event) => event === 'event: response.created')).toHaveLength(1);
    expect(events).toContain('event: keepalive');
    expect(events.at(-1)).toBe('event: response.completed');
  });
});

describe('a reply', () => {
  it.each([[true], [false]])(
    'is not sent, not even in part, before its record is durable (stream: %s)',
    async (stream) => {
      const session = await rig.open({ key });
      rig.journal.hold = true;
      const sent = rig.chat(key, { stream });
      let ended = false;
      void sent.reply.then(() => {
        ended = true;
      });
      await rig.journal.waiting();
      // Time for two heartbeats passes on the virtual clock. The engine has finished the reply, but the proxy must not send it, because its
      // record is not durable yet.
      clock.advance(stream ? 20_000 : 0);
      const early = stream ? await sent.firstBytes : '';
      expect(early).not.toContain('Hello.');
      expect(early).not.toContain('[DONE]');
      expect(ended).toBe(false);
      expect(session.completionCount).toBe(0);
      rig.journal.held[0]?.commit();
      expect((await sent.reply).body).toContain('Hello.');
      expect(session.completionCount).toBe(1);
    },
  );

  it('is neither sent nor kept when its record cannot be written, and its call fails', async () => {
    const session = await rig.open({ key });
    rig.journal.hold = true;
    const sent = rig.chat(key);
    await rig.journal.waiting();
    rig.journal.held[0]?.fail(new FloeError('store_unavailable', 'no space left'));
    const reply = await sent.reply;
    expect(reply.status).toBe(503);
    expect(reply.headers['retry-after']).toBe('1');
    expect(reply.body).not.toContain('Hello.');
    expect(session).toMatchObject({
      completionCount: 0,
      sampledTokens: 0,
      failures: { ofMain: { code: 'store_unavailable' } },
    });
    expect(session.completions()).toEqual([]);
    rig.journal.hold = false;
    expect((await rig.chat(key).reply).status).toBe(200);
    expect(session.failures.ofMain).toBeNull();
  });
});

describe('a reply to a slow client or engine', () => {
  it('is undelivered when the client never reads it, and the client is disconnected', async () => {
    const session = await rig.open({ key });
    // The reply is larger than the socket buffers of proxy and client, so its delivery stops when the client does not read.
    const content = 'x'.repeat(32 * 1024 * 1024);
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, { content }));
    const { connect } = await import('node:net');
    const { port } = new URL(rig.proxy.origin);
    const body = JSON.stringify(chatBody());
    const socket = connect(Number(port), '127.0.0.1');
    socket.on('error', () => {});
    const closed = new Promise((resolve) => socket.once('close', resolve));
    socket.write(
      `POST /s/${key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    socket.pause();
    await until(() => session.completionCount > 0);
    const completion = session.completions()[0];
    while (completion?.undelivered === false) {
      clock.advance(10_000);
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(completion?.undelivered).toBe(true);
    socket.destroy();
    await closed;
  });

  it('is discarded without a timer when the client has disconnected before the reply', async () => {
    const session = await rig.open({ key });
    const held = hold();
    const sent = rig.chat(key);
    const received = await held;
    const disconnected = clock.scheduled(ABANDON_GRACE_MS);
    sent.abort();
    await disconnected;
    const schedule = vi.spyOn(clock, 'schedule');
    json(received.response, 200, vllmReply(received));
    await until(() => session.completionCount > 0);
    await new Promise((resolve) => setImmediate(resolve));
    expect(schedule).not.toHaveBeenCalled();
    expect(session.completions()[0]?.undelivered).toBe(true);
  });
});
