import { systemClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { startSim } from '@floe-rl/sim';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DIALECTS } from '../../../src/dialects/registry.ts';
import { createEnginePools } from '../../../src/engines/pool/managed-engine-pools.ts';
import { createProxy } from '../../../src/proxy/http/proxy.ts';
import { json, type Received, vllmReply } from '../../engines/scripted-server.ts';
import { ask, askCount } from '../dialect-bodies.ts';
import { Rig } from '../rig.ts';

let rig: Rig;
let key: string;
beforeEach(async () => {
  rig = await Rig.start();
  key = rig.key();
});
afterEach(() => rig.stop());

const names = DIALECTS.map(({ name }) => name);

function send(asked: { path: string; body: unknown }, method = 'POST') {
  return rig.send({ method, path: `/s/${key}${asked.path}`, body: asked.body }).reply;
}

describe.each(names)('a request for another model in %s', (name) => {
  it('is refused with the names of the models, and nothing is generated', async () => {
    const session = await rig.open({ key, modelAliases: ['small'] });
    for (const asked of [
      ask(name, { model: 'gpt-x' }),
      ask(name, { model: 'gpt-x', stream: true }),
      askCount(name, 'gpt-x'),
    ]) {
      if (asked === null) continue;
      const { status, body } = await send(asked);
      expect(status).toBe(404);
      expect(JSON.parse(body).error.message).toBe('no such model: gpt-x; there is policy, small');
    }
    expect(rig.server.received.filter(({ method }) => method === 'POST')).toEqual([]);
    expect(session).toMatchObject({ completionCount: 0, failures: { refusal: { code: 'not_found' } } });
  });

  it('is served when the name is an alias, or any name is', async () => {
    await rig.open({ key, modelAliases: ['small'] });
    const { status, body } = await send(ask(name, { model: 'small' }));
    expect(status).toBe(200);
    expect(body).toContain('small');
    expect(rig.server.chats[0]?.body.model).toBe('toy');
    key = rig.key();
    await rig.open({ key, sessionId: 'ses_2', modelAliases: ['*'] });
    expect((await send(ask(name, { model: 'whatever' }))).status).toBe(200);
    expect((await send(ask(name, { model: 'm'.repeat(513) }))).status).toBe(404);
  });
});

describe('a bound on turns', () => {
  it.each(names)('ends the session with a refusal that %s harnesses neither repeat nor compact for', async (name) => {
    let limitCalls = 0;
    const session = await rig.open({ key, maxTurns: 2, onTurnLimit: () => void limitCalls++ });
    expect((await send(ask(name, { text: 'one' }))).status).toBe(200);
    expect((await send(ask(name, { text: 'two', stream: true }))).status).toBe(200);
    expect(limitCalls).toBe(0);
    for (const stream of [false, true]) {
      const { status, body, headers } = await send(ask(name, { text: 'three', stream }));
      expect(status).toBe(400);
      expect(headers['retry-after']).toBeUndefined();
      expect(body).not.toMatch(/context|too long|token|length|exceed|maximum|window|prompt/i);
    }
    expect(limitCalls).toBe(1);
    expect(session).toMatchObject({ completionCount: 2, failures: { refusal: { code: 'turn_limit' } } });
    expect(rig.server.chats).toHaveLength(2);
  });

  it('counts neither calls of sub-agents nor replies that the engine aborted', async () => {
    const session = await rig.open({ key, maxTurns: 1, callRules: 'claude_code' });
    const asked = ask('anthropic');
    const agent = { 'x-claude-code-agent-id': 'a1' };
    await rig.send({ path: `/s/${key}${asked.path}`, body: asked.body, headers: agent }).reply;
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received, { finish: 'abort' }));
    expect((await send(ask('anthropic', { text: 'one' }))).status).toBe(502);
    rig.server.onChat = (received) => json(received.response, 200, vllmReply(received));
    expect((await send(ask('anthropic', { text: 'one' }))).status).toBe(200);
    expect((await send(ask('anthropic', { text: 'two' }))).status).toBe(400);
    await rig.send({ path: `/s/${key}${asked.path}`, body: asked.body, headers: agent }).reply;
    expect(session.completions().map(({ callKind }) => callKind)).toEqual(['subagent', 'main', 'main', 'subagent']);
  });

  it('is not exceeded by concurrent calls, which are refused temporarily', async () => {
    const session = await rig.open({ key, maxTurns: 1 });
    const held = new Promise<Received>((resolve) => {
      rig.server.onChat = resolve;
    });
    const first = send(ask('openai_chat', { text: 'one' }));
    const received = await held;
    const second = await send(ask('openai_chat', { text: 'two' }));
    expect(second).toMatchObject({ status: 429, headers: { 'retry-after': '1' } });
    json(received.response, 200, vllmReply(received));
    expect((await first).status).toBe(200);
    expect((await send(ask('openai_chat', { text: 'two' }))).status).toBe(400);
    expect(session.completionCount).toBe(1);
  });
});

describe('the parameters of a request besides its prompt', () => {
  it.each<[string, object]>([
    ['stop strings', { stop: Array.from({ length: 65 }, (_, index) => `stop ${index}`) }],
    ['long stop strings', { stop: ['x'.repeat(600_000)] }],
    [
      'a large schema',
      { response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { title: 'x'.repeat(600_000) } } } },
    ],
  ])('are refused when they are too large: %s', async (_, body) => {
    await rig.open({ key });
    const { status, body: answer } = await rig.chat(key, body).reply;
    expect({ status, code: JSON.parse(answer).error.code }).toEqual({ status: 400, code: 'schema_violation' });
    expect(rig.server.chats).toEqual([]);
  });

  it('are adjusted with few and short notes', async () => {
    const session = await rig.open({ key });
    const tools = Array.from({ length: 1000 }, (_, index) => ({ type: `${index}${'x'.repeat(1000)}` }));
    expect((await rig.chat(key, { tools }).reply).status).toBe(200);
    const adjusted = session.completions()[0]?.request.adjusted ?? [];
    expect(adjusted).toHaveLength(64);
    expect(Math.max(...adjusted.map(({ length }) => length))).toBe(160);
  });
});

describe('a request that continues a previous response', () => {
  const respond = (body: object) =>
    send({ path: '/v1/responses', body: { model: 'policy', ...body } }).then((reply) => ({
      status: reply.status,
      body: JSON.parse(reply.body),
    }));

  it('has its conversation and reply before the new messages', async () => {
    const session = await rig.open({ key });
    const one = await respond({ instructions: 'Be brief.', input: 'one' });
    const two = await respond({ input: 'two', previous_response_id: one.body.id });
    await respond({ instructions: 'Be long.', input: 'three', previous_response_id: two.body.id });
    const asked = rig.server.chats.map(({ body }) => body.messages);
    const history = [
      { role: 'user', content: 'one' },
      { role: 'assistant', content: 'Hello.' },
      { role: 'user', content: 'two' },
    ];
    expect(asked[1]).toEqual([{ role: 'system', content: 'Be brief.' }, ...history]);
    expect(asked[2]).toEqual([
      { role: 'system', content: 'Be long.' },
      ...history,
      { role: 'assistant', content: 'Hello.' },
      { role: 'user', content: 'three' },
    ]);
    expect(session.completions()[1]?.request.messages).toHaveLength(4);
  });

  it('is refused with the name of the field when the response is not of this session', async () => {
    await rig.open({ key });
    const one = await respond({ input: 'one' });
    key = rig.key();
    await rig.open({ key, sessionId: 'ses_2' });
    for (const id of [one.body.id, 'resp_cpl_nothing']) {
      const { status, body } = await respond({ input: 'two', previous_response_id: id });
      expect(status).toBe(400);
      expect(body.error.message).toContain('previous_response_id');
    }
    expect(rig.server.chats).toHaveLength(1);
  });
});

describe('a message thread', () => {
  const post = (body: object) =>
    send({ path: '/v1/messages', body: { model: 'policy', max_tokens: 100, ...body } }).then((reply) => ({
      status: reply.status,
      body: JSON.parse(reply.body),
    }));
  const say = (content: string) => ({ messages: [{ role: 'user', content }] });
  const from = ({ body }: { body: { id: string } }) => ({ thread: { type: 'continue', previous_message_id: body.id } });

  it('has its conversation, system text and tools before each new message', async () => {
    const session = await rig.open({ key });
    const tools = [{ name: 'bash', input_schema: { type: 'object' } }];
    const one = await post({ ...say('one'), system: 'Be brief.', tools, thread: { type: 'create' } });
    const two = await post({ ...say('two'), ...from(one) });
    await post({ ...say('three'), ...from(two) });
    const reply = { role: 'assistant', content: 'Hello.' };
    const [, second, third] = rig.server.chats.map(({ body }) => body);
    expect(third?.messages).toEqual([
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'one' },
      reply,
      { role: 'user', content: 'two' },
      reply,
      { role: 'user', content: 'three' },
    ]);
    expect(second?.tools).toEqual(third?.tools);
    expect(third?.tools).toMatchObject([{ function: { name: 'bash' } }]);
    expect(session.completions().map(({ request }) => request.tools.length)).toEqual([1, 1, 1]);
  });

  it('is reported as lost when it is not of this session', async () => {
    await rig.open({ key });
    const one = await post(say('one'));
    key = rig.key();
    await rig.open({ key, sessionId: 'ses_2' });
    for (const thread of [from(one), from({ body: { id: 'msg_nothing' } })]) {
      const { status, body } = await post({ ...say('two'), ...thread });
      expect(status).toBe(404);
      expect(body.error.details).toEqual({ error_code: 'thread_not_found' });
    }
    expect(rig.server.chats).toHaveLength(1);
  });
});

describe('a request that needs no generation', () => {
  it('counts the exact prompt with its tools, lists models and answers probes without sampling', async () => {
    const sim = await startSim();
    const engines = await createEnginePools([engineSpecSchema.parse({ base_url: sim.url })], { clock: systemClock });
    const proxy = createProxy({ engines, journal: rig.journal, clock: systemClock });
    await proxy.listen({ host: '127.0.0.1', port: 0 });
    const scripted = rig.proxy;
    rig.proxy = proxy;
    try {
      const session = await rig.open({ key });
      const tool = {
        name: 'bash',
        description: 'Runs a command.',
        input_schema: { type: 'object', properties: { command: { type: 'string' } } },
      };
      const body = { ...ask('anthropic').body, tools: [tool] };
      const count = await send({ path: '/v1/messages/count_tokens', body });
      const counted = JSON.parse(count.body).input_tokens;
      for (const name of names) {
        const asked = askCount(name);
        if (asked !== null) expect((await send(asked)).status).toBe(200);
      }
      for (const path of ['/v1/models', '/v1beta/models', '/models', '/v1/models/policy']) {
        expect((await send({ path, body: undefined }, 'GET')).status).toBe(200);
      }
      for (const path of ['/', '/api/hello', '/v1/messages', '/v1/chat/completions', '/v1/models']) {
        expect(await send({ path, body: undefined }, 'HEAD')).toMatchObject({ status: 200, body: '' });
      }
      expect((await send({ path: '/nowhere', body: undefined }, 'HEAD')).status).toBe(404);
      const root = await send({ path: '/', body: undefined }, 'GET');
      expect(root.status).toBe(404);
      expect(JSON.parse(root.body).error.message).toContain('no such path');
      expect(sim.ledger.entries({ sessionId: session.sessionId })).toEqual([]);
      expect(session).toMatchObject({ completionCount: 0, sampledTokens: 0 });
      expect((await send({ path: '/v1/messages', body })).status).toBe(200);
      expect(sim.ledger.entries({ sessionId: session.sessionId })[0]?.prompt_ids).toHaveLength(counted);
      const bare = JSON.parse((await send({ path: '/v1/messages/count_tokens', body: ask('anthropic').body })).body);
      expect(bare.input_tokens).toBeLessThan(counted);
    } finally {
      rig.proxy = scripted;
      await proxy.close();
      await engines.close();
      await sim.close();
    }
  });
});
