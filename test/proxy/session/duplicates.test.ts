import { afterEach, beforeEach, describe, expect, test } from 'vitest';
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

/** Holds the engine's replies back until told. */
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

/** Resolves when the proxy has noticed that the client of `response` is gone or served. */
async function settled(check: () => boolean): Promise<void> {
  while (!check()) await new Promise((resolve) => setImmediate(resolve));
}

describe('the same body again', () => {
  test('joins the call while it runs: one sample, two replies', async () => {
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

  test('joins the call of a client that is gone, within the grace', async () => {
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

  test('gets the reply that nobody got', async () => {
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

  test('after a reply that was delivered is a new sample, and the earlier one is abandoned', async () => {
    const session = await rig.open({ key });
    const first = await rig.chat(key).reply;
    const second = await rig.chat(key).reply;
    expect(JSON.parse(first.body).id).not.toBe(JSON.parse(second.body).id);
    expect(session.completions().map(({ abandoned }) => abandoned)).toEqual([true, false]);
  });

  test('leaves the earlier reply alone when the harness goes on with it, before or after the repeat', async () => {
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

  test('with tool calls is matched by the call id, whatever happened to the arguments', async () => {
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

  test('of another agent thread or dialect is another call', async () => {
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

describe('a client that goes away', () => {
  test('ends the engine call after the grace, and nothing is recorded', async () => {
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

  test('with a reply on its way leaves it undelivered', async () => {
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
