import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ABANDON_GRACE_MS } from '../../../src/proxy/session/call.ts';
import { json, vllmReply } from '../../engines/scripted-server.ts';
import { Rig, until, WatchedClock } from '../rig.ts';
import { TemplatePool } from '../template-pool.ts';
import { TokenSession, user } from '../token-session.ts';

let rig: Rig;
let clock: WatchedClock;
beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock);
});
afterEach(() => rig.stop());

describe('a call whose client disconnects before any part of the reply arrived', () => {
  it('is not one of the turns of the main agent', async () => {
    const key = rig.key();
    const session = await rig.open({ key, maxTurns: 1 });
    rig.server.onChat = () => undefined;
    const noticed = clock.scheduled(ABANDON_GRACE_MS);
    const sent = rig.chat(key, { stream: true });
    await until(() => rig.server.chats.length === 1);
    sent.abort();
    await noticed;
    clock.advance(ABANDON_GRACE_MS);
    await until(() => session.runningCalls === 0);
    expect(session.turns).toBe(0);
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received));
    expect((await rig.chat(key, { messages: [{ role: 'user', content: 'two' }] }).reply).status).toBe(200);
    expect(session.turns).toBe(1);
  });
});

describe('requests to count tokens', () => {
  it('are refused while 64 others run, and accepted afterwards', async () => {
    const pool = await TemplatePool.start('append_only');
    const { calls, requestOf } = new TokenSession(pool);
    const count = (text: string) => calls.admission.countTokens(requestOf([user(text)]), new AbortController().signal);
    let release = (): void => {};
    const released = new Promise<void>((resolve) => {
      release = resolve;
    });
    const render = pool.render.bind(pool);
    pool.render = (request) => released.then(() => render(request));
    const running = Array.from({ length: 64 }, (_, index) => count(`question ${index}`));
    const refused = expect(count('one more')).rejects.toMatchObject({
      code: 'overloaded',
      message: expect.stringContaining('64 prompts'),
    });
    release();
    await refused;
    await Promise.all(running);
    expect(await count('one more')).toBeGreaterThan(0);
  });
});

describe('the failure of a call that is being retried', () => {
  const title = {
    response_format: {
      type: 'json_schema',
      json_schema: { name: 'title', schema: { type: 'object', properties: { title: { type: 'string' } } } },
    },
  };

  it.each<[string, object, Record<string, string>, boolean, boolean]>([
    ['of the main agent counts for the main agent and for all agents', {}, {}, true, true],
    ['of a sub-agent counts only for all agents', {}, { 'x-claude-code-agent-id': 'a1' }, false, true],
    ['of an auxiliary request counts for no agent', title, {}, false, false],
  ])('%s', async (_, body, headers, forMain, forAgents) => {
    const key = rig.key();
    const session = await rig.open({ key, callRules: 'claude_code' });
    rig.engines.deregister(null);
    rig.chat(key, body, headers);
    await until(() => session.runningCalls === 1);
    // The failure becomes pending only after some turns of the event loop, because the call first has to wait for an engine.
    if (forAgents) await until(() => session.pendingFailure('agents') !== null);
    else for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(session.pendingFailure('main') !== null).toBe(forMain);
    expect(session.pendingFailure('agents') !== null).toBe(forAgents);
  });
});
