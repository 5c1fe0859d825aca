import { FloeError } from '@floe-rl/core';
import { samplingSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ABANDON_GRACE_MS } from '../../../src/proxy/session/call.ts';
import type { ProxySession } from '../../../src/proxy/session/session.ts';
import { json, type Received, vllmReply } from '../../engines/scripted-server.ts';
import { type Reply, Rig, until, WatchedClock } from '../rig.ts';

let rig: Rig;
let clock: WatchedClock;
let key: string;
beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock);
  key = rig.key();
});
afterEach(() => rig.stop());

/** Makes the engine hold back its replies. Returns a function that sends them. */
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

/** Headers of the first retry of an SDK that counts its retries. */
const RETRY = { 'x-stainless-retry-count': '1' };
/** Headers of a request that an SDK sends for the first time. */
const FIRST = { 'x-stainless-retry-count': '0' };

const idOf = ({ body }: Reply): string => JSON.parse(body).id;
const marksOf = (session: ProxySession): boolean[] => session.completions().map(({ abandoned }) => abandoned);

/** Sends a request whose client disconnects while the engine holds its reply. Resolves when the proxy has noticed this. */
async function sendAndDisconnect(arrived: number): Promise<void> {
  const sent = rig.chat(key);
  await rig.server.arrived(arrived);
  const noticed = clock.scheduled(ABANDON_GRACE_MS);
  sent.abort();
  await noticed;
}

describe('equal requests without evidence of a retry', () => {
  it.each([
    ['without any header', {}],
    ['which an SDK counts as first attempts', FIRST],
  ])('get a sample each when they are sent at the same time, %s', async (_, headers) => {
    const session = await rig.open({ key, sampling: samplingSchema.parse({ seed: 7 }) });
    const engine = holdReplies();
    const sent = Array.from({ length: 6 }, () => rig.chat(key, {}, headers));
    await rig.server.arrived(6);
    for (const _ of sent) engine.release();
    const replies = await Promise.all(sent.map(({ reply }) => reply));
    expect(new Set(replies.map(idOf)).size).toBe(6);
    expect(new Set(rig.server.chats.map(({ body }) => body.seed)).size).toBe(6);
    expect(marksOf(session)).toEqual(Array(6).fill(false));
  });

  it.each([
    ['without any header', {}],
    ['which an SDK counts as first attempts', FIRST],
    ['with an unreadable count of retries', { 'x-stainless-retry-count': '-1' }],
  ])('get a sample each when they are sent one after the other, %s', async (_, headers) => {
    const session = await rig.open({ key, sampling: samplingSchema.parse({ seed: 7 }) });
    const ids = [];
    for (let i = 0; i < 6; i++) ids.push(idOf(await rig.chat(key, {}, headers).reply));
    expect(new Set(ids).size).toBe(6);
    expect(new Set(rig.server.chats.map(({ body }) => body.seed)).size).toBe(6);
    expect(marksOf(session)).toEqual(Array(6).fill(false));
  });

  it('get a sample each when their idempotency keys differ, even if a client has disconnected', async () => {
    const session = await rig.open({ key });
    const engine = holdReplies();
    await sendAndDisconnect(1);
    const sent = ['a', 'b'].map((name) => rig.chat(key, {}, { 'idempotency-key': name }));
    await rig.server.arrived(3);
    for (let i = 0; i < 3; i++) engine.release();
    const [one, two] = await Promise.all(sent.map(({ reply }) => reply));
    expect(idOf(one as Reply)).not.toBe(idOf(two as Reply));
    await until(() => session.completionCount === 3);
    expect(session.completions().map(({ undelivered }) => undelivered)).toEqual([true, false, false]);
  });
});

describe('a retry', () => {
  it.each([
    ['by a count of retries', {}, RETRY],
    ['by a later count of retries', RETRY, { 'x-stainless-retry-count': '02' }],
    ['by an equal idempotency key', { 'idempotency-key': 'a' }, { 'idempotency-key': 'a' }],
    ['by the older spelling of that key', { 'x-idempotency-key': 'a' }, { 'x-idempotency-key': 'a' }],
  ])('joins the running call, so that one sample is sent in two replies, %s', async (_, headers, again) => {
    const session = await rig.open({ key });
    const engine = holdReplies();
    const first = rig.chat(key, {}, headers);
    await rig.server.arrived(1);
    const second = rig.chat(key, {}, again);
    await until(() => session.requests === 2);
    engine.release();
    const [one, two] = await Promise.all([first.reply, second.reply]);
    expect(one.body).toBe(two.body);
    expect(rig.server.chats).toHaveLength(1);
    expect(session.completions()).toMatchObject([{ undelivered: false, abandoned: false }]);
  });

  it('joins the call whose client has disconnected, and not an equal call of a waiting client', async () => {
    const session = await rig.open({ key });
    const engine = holdReplies();
    const waiting = rig.chat(key);
    await rig.server.arrived(1);
    await sendAndDisconnect(2);
    const again = rig.chat(key);
    await until(() => session.requests === 3);
    engine.release();
    engine.release();
    const [one, two] = await Promise.all([waiting.reply, again.reply]);
    expect(idOf(one)).toBe(session.completions()[0]?.completionId);
    expect(idOf(two)).toBe(session.completions()[1]?.completionId);
    expect(session.completions()).toMatchObject([{ undelivered: false }, { undelivered: false }]);
  });

  it('of each of several clients that have disconnected joins a different call', async () => {
    const session = await rig.open({ key });
    const engine = holdReplies();
    const lost = [rig.chat(key), rig.chat(key)];
    await rig.server.arrived(2);
    for (const sent of lost) {
      const noticed = clock.scheduled(ABANDON_GRACE_MS);
      sent.abort();
      await noticed;
    }
    const again = [rig.chat(key), rig.chat(key)];
    await until(() => session.requests === 4);
    engine.release();
    engine.release();
    const replies = await Promise.all(again.map(({ reply }) => reply));
    expect(new Set(replies.map(idOf)).size).toBe(2);
    expect(rig.server.chats).toHaveLength(2);
  });

  it('gets its own sample when the engine failed, while an equal call of another client is running', async () => {
    const session = await rig.open({ key });
    const held: Received[] = [];
    rig.server.onChat = (received) => void held.push(received);
    const sibling = rig.chat(key, {}, FIRST);
    await rig.server.arrived(1);
    rig.server.onChat = ({ response }) => json(response, 500, { error: { message: 'not now' } });
    expect((await rig.chat(key, {}, FIRST).reply).status).not.toBe(200);
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received));
    const retried = await rig.chat(key, {}, RETRY).reply;
    for (const received of held) json(received.response, 200, vllmReply(received));
    expect(idOf(retried)).not.toBe(idOf(await sibling.reply));
    expect(marksOf(session)).toEqual([false, false]);
  });

  it('gets its own sample when the proxy refused the request, while an equal call of another client is running', async () => {
    let isFull = false;
    const admit = (): void => {
      if (isFull) throw new FloeError('overloaded', 'not now');
    };
    const session = await rig.open({ key, admit });
    const engine = holdReplies();
    const sibling = rig.chat(key, {}, FIRST);
    await rig.server.arrived(1);
    isFull = true;
    expect((await rig.chat(key, {}, FIRST).reply).status).toBe(429);
    isFull = false;
    const retried = rig.chat(key, {}, RETRY);
    await rig.server.arrived(2);
    engine.release();
    engine.release();
    expect(idOf(await retried.reply)).not.toBe(idOf(await sibling.reply));
    expect(marksOf(session)).toEqual([false, false]);
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
    await until(() => session.requests === 2);
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
    await until(() => session.completions()[0]?.undelivered === true);
    const second = await rig.chat(key).reply;
    expect(JSON.parse(second.body).id).toBe(session.completions()[0]?.completionId);
    expect(rig.server.chats).toHaveLength(1);
    await until(() => session.completions()[0]?.undelivered === false);
    expect(session.completionCount).toBe(1);
  });

  it.each([
    ['by a count of retries', {}, RETRY],
    ['by an equal idempotency key', { 'idempotency-key': 'a' }, { 'idempotency-key': 'a' }],
  ])('is a new sample after the reply was delivered, and that reply is abandoned, %s', async (_, headers, again) => {
    const session = await rig.open({ key });
    const first = await rig.chat(key, {}, headers).reply;
    const second = await rig.chat(key, {}, again).reply;
    expect(idOf(first)).not.toBe(idOf(second));
    expect(marksOf(session)).toEqual([true, false]);
  });

  it.each([
    ['qwen_code', [true, false]],
    ['gemini_cli', [true, false]],
    ['claude_code', [false, false]],
    ['codex', [false, false]],
    [null, [false, false]],
  ] as const)(
    'is assumed after a delivered reply only for a harness that is known to send one: %s',
    async (callRules, marks) => {
      const session = await rig.open({ key, callRules });
      await rig.chat(key).reply;
      await rig.chat(key).reply;
      expect(marksOf(session)).toEqual(marks);
    },
  );

  it('does not abandon the earlier reply when the harness continues it, before or after the retry', async () => {
    const session = await rig.open({ key });
    const user = { role: 'user', content: 'hi' };
    const next = { messages: [user, { role: 'assistant', content: ' Hello.\n' }, { role: 'user', content: 'more' }] };
    await rig.chat(key).reply;
    await rig.chat(key, next).reply;
    await rig.chat(key, {}, RETRY).reply;
    expect(marksOf(session)).toEqual([false, false, false]);
    await rig.chat(key, next, RETRY).reply;
    expect(marksOf(session)).toEqual([false, true, false, false]);
    const beyond = { messages: [...next.messages, { role: 'assistant', content: 'Hello.' }, user] };
    await rig.chat(key, beyond).reply;
    expect(session.completions()[1]?.abandoned).toBe(false);
  });

  it('does not abandon a reply with tool calls whose call id returns, whatever happened to the arguments', async () => {
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
    await rig.chat(key, {}, RETRY).reply;
    expect(marksOf(session)).toEqual([true, false]);
    const [{ id }] = JSON.parse(body).choices[0].message.tool_calls;
    const assistant = { role: 'assistant', content: '', tool_calls: [call(id)] };
    const result = { role: 'tool', tool_call_id: id, content: 'ok' };
    await rig.chat(key, { messages: [{ role: 'user', content: 'hi' }, assistant, result] }).reply;
    expect(marksOf(session)).toEqual([false, false, false]);
  });

  it('is another call in another agent thread or dialect', async () => {
    const session = await rig.open({ key, callRules: 'opencode' });
    const engine = holdReplies();
    const sent = [
      rig.chat(key),
      rig.chat(key, {}, { ...RETRY, 'x-session-id': 'b', 'x-parent-session-id': 'a' }),
      rig.send({
        path: `/s/${key}/v1/messages`,
        headers: RETRY,
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

describe('equal requests in two sessions, however the second one shows that it is a retry', () => {
  const HEADERS: Record<string, string>[] = [RETRY, { 'idempotency-key': 'a' }, { 'x-idempotency-key': 'a' }];

  /** Opens two sessions whose harness sends a request again when it cannot use the reply. */
  async function openTwo(): Promise<{ keys: [string, string]; sessions: ProxySession[] }> {
    const keys: [string, string] = [key, rig.key()];
    const open = (sessionKey: string, i: number) =>
      rig.open({ key: sessionKey, sessionId: `ses_${i}`, callRules: 'qwen_code' });
    return { keys, sessions: await Promise.all(keys.map(open)) };
  }

  function expectOneEach(sessions: readonly ProxySession[], replies: readonly Reply[]): void {
    const recorded = sessions.map((session) => session.completions());
    expect(recorded.map((completions) => completions.length)).toEqual([1, 1]);
    expect(replies.map(idOf)).toEqual(recorded.map(([only]) => only?.completionId));
    expect(new Set(replies.map(idOf)).size).toBe(2);
    for (const session of sessions) {
      expect(session.completions()).toMatchObject([{ abandoned: false, undelivered: false }]);
    }
  }

  it.each(HEADERS)('get a sample each while both are running: %o', async (headers) => {
    const { keys, sessions } = await openTwo();
    const engine = holdReplies();
    const sent = [rig.chat(keys[0], {}, headers), rig.chat(keys[1], {}, headers)];
    await rig.server.arrived(2);
    for (const _ of sent) engine.release();
    expectOneEach(sessions, await Promise.all(sent.map(({ reply }) => reply)));
  });

  it.each(HEADERS)('get a sample each when the first one has its reply: %o', async (headers) => {
    const { keys, sessions } = await openTwo();
    const first = await rig.chat(keys[0], {}, headers).reply;
    expectOneEach(sessions, [first, await rig.chat(keys[1], {}, headers).reply]);
  });

  it('get a sample each when the client of the first one has disconnected', async () => {
    const { keys, sessions } = await openTwo();
    const engine = holdReplies();
    await sendAndDisconnect(1);
    const second = rig.chat(keys[1], {}, RETRY);
    await rig.server.arrived(2);
    const retried = rig.chat(keys[0], {}, RETRY);
    await until(() => sessions[0]?.requests === 2);
    engine.release();
    engine.release();
    expectOneEach(sessions, [await retried.reply, await second.reply]);
  });

  it('leave the unused reply of a retried call abandoned, whatever failed in the other session', async () => {
    const { keys, sessions } = await openTwo();
    await rig.chat(keys[1]).reply;
    rig.server.onChat = ({ response }) => json(response, 400, { error: { message: 'no' } });
    expect((await rig.chat(keys[0]).reply).status).toBe(400);
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received));
    await rig.chat(keys[1], {}, RETRY).reply;
    expect(sessions.map(marksOf)).toEqual([[], [true, false]]);
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
    expect(session).toMatchObject({ completionCount: 0, failures: { ofMain: null } });
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
    await until(() => session.completions()[0]?.undelivered === true);
    expect(session.completionCount).toBe(1);
  });
});
