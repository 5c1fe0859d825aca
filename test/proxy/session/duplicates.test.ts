import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ABANDON_GRACE_MS } from '../../../src/proxy/session/call.ts';
import { json, type Received, vllmReply } from '../../engines/scripted-server.ts';
import { Rig, WatchedClock } from '../rig.ts';

let rig: Rig;
let clock: WatchedClock;
let key: string;
beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock);
  key = rig.key();
});
afterEach(() => rig.stop());

/** Holds the engine's replies back. Returns a function that releases them. */
function holdReplies(): { release: (parts?: Parameters<typeof vllmReply>[1]) => void } {
  const held: Received[] = [];
  rig.server.onChat = (received) => void held.push(received);
  return {
    release: (parts) => {
      const received = held.shift();
      if (received) json(received.response, 200, vllmReply(received, parts));
    },
  };
}

/** Resolves when `check` returns `true`, for example when the proxy has noticed that a client has disconnected. */
async function settled(check: () => boolean): Promise<void> {
  while (!check()) await new Promise((resolve) => setImmediate(resolve));
}

describe('a repeated body', () => {
  it('joins the running call, so that one sample is sent in two replies', async () => {
    const session = await rig.open({ key });
    const engine = holdReplies();
    const first = rig.chat(key);
    await rig.server.arrived(1);
    const second = rig.chat(key);
    await settled(() => session.requests === 2);
    engine.release();
    const [one, two] = await Promise.all([first.reply, second.reply]);
    expect(one.body).toBe(two.body);
    expect(rig.server.chats).toHaveLength(1);
    expect(session.completions()).toMatchObject([{ undelivered: false, abandoned: false }]);
  });

  it('joins the call of a disconnected client within the grace period', async () => {
    const session = await rig.open({ key });
    const engine = holdReplies();
    const first = rig.chat(key);
    await rig.server.arrived(1);
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    first.abort();
    await noticed;
    clock.advance(ABANDON_GRACE_MS - 100);
    const second = rig.chat(key);
    await settled(() => session.requests === 2);
    clock.advance(60_000);
    engine.release();
    expect((await second.reply).status).toBe(200);
    expect(rig.server.chats).toHaveLength(1);
    expect(session.completions()).toMatchObject([{ undelivered: false }]);
  });

  it('receives the reply that no client received', async () => {
    const session = await rig.open({ key });
    rig.journal.hold = true;
    const first = rig.chat(key);
    await rig.journal.waiting();
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    first.abort();
    await noticed;
    rig.journal.held[0]?.commit();
    await settled(() => session.completions()[0]?.undelivered === true);
    const second = await rig.chat(key).reply;
    expect(JSON.parse(second.body).id).toBe(session.completions()[0]?.completionId);
    expect(rig.server.chats).toHaveLength(1);
    await settled(() => session.completions()[0]?.undelivered === false);
    expect(session.completionCount).toBe(1);
  });

  it('is a new sample after the reply was delivered, and the earlier one is abandoned', async () => {
    const session = await rig.open({ key });
    const first = await rig.chat(key).reply;
    const second = await rig.chat(key).reply;
    expect(JSON.parse(first.body).id).not.toBe(JSON.parse(second.body).id);
    expect(session.completions().map(({ abandoned }) => abandoned)).toEqual([true, false]);
  });

  it('does not abandon the earlier reply when the harness continues it, before or after the repeat', async () => {
    const session = await rig.open({ key });
    const user = { role: 'user', content: 'hi' };
    const next = { messages: [user, { role: 'assistant', content: ' Hello.\n' }, { role: 'user', content: 'more' }] };
    await rig.chat(key).reply;
    await rig.chat(key, next).reply;
    await rig.chat(key).reply;
    expect(session.completions().map(({ abandoned }) => abandoned)).toEqual([false, false, false]);
    await rig.chat(key, next).reply;
    expect(session.completions().map(({ abandoned }) => abandoned)).toEqual([false, true, false, false]);
    const beyond = { messages: [...next.messages, { role: 'assistant', content: 'Hello.' }, user] };
    await rig.chat(key, beyond).reply;
    expect(session.completions()[1]?.abandoned).toBe(false);
  });

  it('matches a reply with tool calls by the call id, whatever happened to the arguments', async () => {
    const session = await rig.open({ key });
    const call = (id: string) => ({ id, type: 'function', function: { name: 'sh', arguments: '{"a":1}' } });
    let number = 0;
    rig.server.onChat = (received) => {
      const id = `call_${number++}`;
      json(
        received.response,
        200,
        vllmReply(received, { content: null, toolCalls: [{ id, name: 'sh', arguments: '{"a" :1}' }] }),
      );
    };
    const { body } = await rig.chat(key).reply;
    await rig.chat(key).reply;
    const [{ id }] = JSON.parse(body).choices[0].message.tool_calls;
    const assistant = { role: 'assistant', content: '', tool_calls: [call(id)] };
    const result = { role: 'tool', tool_call_id: id, content: 'ok' };
    await rig.chat(key, { messages: [{ role: 'user', content: 'hi' }, assistant, result] }).reply;
    expect(session.completions().map(({ abandoned }) => abandoned)).toEqual([false, false, false]);
  });

  it('is another call in another agent thread or dialect', async () => {
    const session = await rig.open({ key });
    const engine = holdReplies();
    const sent = [
      rig.chat(key),
      rig.chat(key, {}, { 'x-session-id': 'b', 'x-parent-session-id': 'a' }),
      rig.send({
        path: `/s/${key}/v1/messages`,
        body: { model: 'policy', messages: [{ role: 'user', content: 'hi' }] },
      }),
    ];
    await rig.server.arrived(3);
    for (const _ of sent) engine.release();
    const replies = await Promise.all(sent.map(({ reply }) => reply));
    expect(replies.map(({ status }) => status)).toEqual([200, 200, 200]);
    expect(new Set(session.completions().map(({ thread }) => thread))).toEqual(new Set(['main', 'b']));
  });
});

describe('a client that disconnects', () => {
  it('ends the engine call after the grace period, and nothing is recorded', async () => {
    const session = await rig.open({ key });
    const upstreamGone = new Promise<void>((resolve) => {
      rig.server.onChat = ({ response }) => void response.once('close', resolve);
    });
    const sent = rig.chat(key, { stream: true });
    await rig.server.arrived(1);
    clock.advance(1_000);
    await sent.headers;
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    sent.abort();
    await noticed;
    clock.advance(ABANDON_GRACE_MS);
    await upstreamGone;
    expect(session).toMatchObject({ completionCount: 0, lastError: null });
    expect(rig.journal.written).toEqual([]);
  });

  it('leaves a reply that is being sent undelivered', async () => {
    const session = await rig.open({ key });
    rig.journal.hold = true;
    const sent = rig.chat(key);
    await rig.journal.waiting();
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    sent.abort();
    await noticed;
    rig.journal.held[0]?.commit();
    await settled(() => session.completions()[0]?.undelivered === true);
    expect(session.completionCount).toBe(1);
  });
});
