import dns, { type LookupAddress } from 'node:dns';
import { systemClock, VirtualClock } from '@floe-rl/core';
import { type EngineSpec, engineSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it, type MockInstance, vi } from 'vitest';
import { z } from 'zod';
import { CallHealth } from '../../src/engines/call-health.ts';
import { invalidReply } from '../../src/engines/chat/reply-tokens.ts';
import type { CallContext } from '../../src/engines/engine.ts';
import { EngineServer } from '../../src/engines/engine-server.ts';
import { sglangServer } from '../../src/engines/sglang/engine.ts';
import { vllmServer } from '../../src/engines/vllm/engine.ts';
import { json, ScriptedServer } from './scripted-server.ts';

const never = new AbortController().signal;
type LookupDone = (error: null, addresses: readonly LookupAddress[]) => void;
const NAMES: CallContext = { completionId: 'cmpl_1', sessionId: 'ses_1', pool: 'default' };

let http: ScriptedServer;
const opened: EngineServer[] = [];

beforeEach(async () => {
  http = new ScriptedServer(() => {});
  await http.listen();
});

afterEach(async () => {
  await Promise.all(opened.splice(0).map((server) => server.close()));
  await http.close();
  vi.restoreAllMocks();
});

function specOf(more: object = {}): EngineSpec {
  return engineSpecSchema.parse({ base_url: http.baseUrl, engine_id: 'eng-1', api_key: 'secret', ...more });
}

function opening(server: EngineServer): EngineServer {
  opened.push(server);
  return server;
}

const plain = (more: object = {}): EngineServer =>
  opening(new EngineServer(specOf(more), { clock: systemClock, isOverflow: ({ type }) => type === 'too_long' }));

const refusing = (status: number, error: unknown, headers = {}): void => {
  http.routes['/act'] = ({ response }) => json(response, status, { error }, headers);
};

describe('a status other than 200', () => {
  it.each([
    [302, 'engine_error'],
    [400, 'engine_rejected'],
    [401, 'engine_error'],
    [402, 'engine_error'],
    [403, 'engine_error'],
    [404, 'engine_error'],
    [405, 'engine_error'],
    [413, 'engine_rejected'],
    [422, 'engine_rejected'],
    [429, 'engine_unavailable'],
    [500, 'engine_error'],
    [501, 'unsupported'],
    [502, 'engine_error'],
    [503, 'engine_unavailable'],
  ])('%i rejects with %s, with the engine id and the status', async (status, code) => {
    refusing(status, { message: 'no such luck' });
    const details = expect.objectContaining({ status, engine_id: 'eng-1' });
    const message = code === 'engine_rejected' ? 'no such luck' : 'engine eng-1: no such luck';
    await expect(plain().post('/act', '{}', null, never)).rejects.toMatchObject({ code, message, details });
  });

  it("a busy server's retry-after is part of the error", async () => {
    const server = plain();
    refusing(503, { message: 'busy' }, { 'retry-after': '2' });
    await expect(server.post('/act', '{}', null, never)).rejects.toMatchObject({ details: { retry_after_ms: 2_000 } });
    refusing(429, { message: 'busy' }, { 'retry-after': 'soon' });
    await expect(server.post('/act', '{}', null, never)).rejects.toMatchObject({ details: { retry_after_ms: null } });
  });

  it('a body without an error message is described by its status', async () => {
    http.routes['/act'] = ({ response }) => void response.writeHead(418).end('short and stout');
    await expect(plain().post('/act', '{}', null, never)).rejects.toMatchObject({
      code: 'engine_rejected',
      message: 'status 418',
    });
  });

  const overlong: [string, () => EngineServer, object][] = [
    ["by the adapter's rule", plain, { message: 'no', type: 'too_long' }],
    ["by vLLM's parameter", () => opening(vllmServer(specOf(), systemClock)), { message: 'no', param: 'input_tokens' }],
    [
      "by vLLM's message",
      () => opening(vllmServer(specOf(), systemClock)),
      { message: "This model's maximum context length is 9." },
    ],
    [
      "by SGLang's message",
      () => opening(sglangServer(specOf(), systemClock)),
      { message: 'It exceeds the maximum allowed length.' },
    ],
  ];
  it.each(overlong)('an overlong prompt is recognised: %s', async (_, make, error) => {
    const server = make();
    refusing(400, error);
    await expect(server.post('/act', '{}', null, never)).rejects.toMatchObject({
      code: 'engine_rejected',
      details: { context_overflow: true },
    });
    refusing(400, { message: 'temperature must be positive', param: 'temperature' });
    const other = await server.post('/act', '{}', null, never).catch((error: unknown) => error);
    expect(other).toMatchObject({ code: 'engine_rejected', details: { param: 'temperature' } });
    expect(other).not.toHaveProperty('details.context_overflow');
  });
});

it('a server that closes the connection without a reply is unavailable, and the error reports the lost connection', async () => {
  http.routes['/act'] = ({ response }) => void response.destroy();
  await expect(plain().post('/act', '{}', null, never)).rejects.toMatchObject({
    code: 'engine_unavailable',
    message: expect.stringMatching(/^engine eng-1 closed the connection: /),
    details: { engine_id: 'eng-1', connection_lost: true },
  });
});

it('a server whose addresses all refuse connections is unavailable, and the error names the code', async () => {
  const addresses = [
    { address: '127.0.0.1', family: 4 },
    { address: '::1', family: 6 },
  ];
  const lookup = vi.spyOn(dns, 'lookup') as unknown as MockInstance<(...args: [string, object, LookupDone]) => void>;
  lookup.mockImplementation((_host, _options, done) => done(null, addresses));
  const refused = plain({ base_url: 'http://engine.test:1' }).post('/act', '{}', null, never);
  await expect(refused).rejects.toMatchObject({
    code: 'engine_unavailable',
    message: 'engine eng-1 cannot be reached: ECONNREFUSED',
  });
});

describe('request headers', () => {
  const sentBy = async (server: EngineServer, names: CallContext | null): Promise<Record<string, unknown>> => {
    http.routes['/base/act'] = ({ response }) => json(response, 200, {});
    const reply = await server.post('/act', Buffer.from('{"a":[1,2]}'), names, never);
    await reply.read();
    const received = http.received.at(-1);
    expect(received).toMatchObject({ path: '/base/act', text: '{"a":[1,2]}' });
    return { ...received?.headers };
  };
  const based = (): EngineSpec => specOf({ base_url: `${http.baseUrl}/base/` });

  it('sends vLLM the ids of the call and the session', async () => {
    expect(await sentBy(opening(vllmServer(based(), systemClock)), NAMES)).toMatchObject({
      authorization: 'Bearer secret',
      'content-type': 'application/json',
      'x-request-id': 'cmpl_1',
      'x-session-id': 'ses_1',
    });
  });

  it("sends SGLang's routers the session id", async () => {
    const headers = await sentBy(opening(sglangServer(based(), systemClock)), NAMES);
    expect(headers).toMatchObject({ 'x-smg-routing-key': 'ses_1', 'x-session-id': 'ses_1' });
    expect(headers).not.toHaveProperty('x-request-id');
  });

  it('sends no ids for a call without a session', async () => {
    for (const make of [vllmServer, sglangServer]) {
      const headers = await sentBy(opening(make(based(), systemClock)), null);
      expect(Object.keys(headers).filter((name) => name.startsWith('x-'))).toEqual([]);
    }
  });

  it('sends no bearer token without an API key, and uses the address as the id without an engine id', async () => {
    const server = opening(
      vllmServer(specOf({ api_key: null, engine_id: undefined, base_url: `${http.baseUrl}/base` }), systemClock),
    );
    expect(await sentBy(server, null)).not.toHaveProperty('authorization');
    expect(server.engineId).toBe(`127.0.0.1-${new URL(http.baseUrl).port}-base`);
  });
});

describe('control requests', () => {
  it('resolve with a reply of any status', async () => {
    http.routes['/act'] = ({ response, text }) => json(response, 418, { text });
    const server = plain();
    expect((await server.controlGet('/nowhere')).status).toBe(404);
    const answers = await server.controlPost('/act', '{"b":1}', never);
    expect([answers.status, JSON.parse(answers.body.toString())]).toEqual([418, { text: '{"b":1}' }]);
  });

  it("reject with the reason of the caller's signal", async () => {
    const controller = new AbortController();
    http.routes['/act'] = () => controller.abort(new Error('enough'));
    await expect(plain().controlPost('/act', '{}', controller.signal)).rejects.toThrow('enough');
  });

  it("reject with engine_unavailable at the time limit, measured with the server's clock", async () => {
    const clock = new VirtualClock();
    http.routes['/act'] = () => void clock.advance(10_000);
    const server = opening(new EngineServer(specOf(), { clock, isOverflow: () => false }));
    await expect(server.controlPost('/act', '{}')).rejects.toMatchObject({
      code: 'engine_unavailable',
      message: 'engine eng-1: /act did not answer within 10000 ms',
    });
  });

  it('reject with engine_error for a reply that does not match the schema, and for an error with status 200', async () => {
    const server = plain();
    const schema = z.looseObject({ count: z.int() });
    const ask = (): Promise<unknown> => server.call('/act', '{}', null, schema, never);
    http.routes['/act'] = ({ response }) => json(response, 200, { count: 3 });
    await expect(ask()).resolves.toMatchObject({ count: 3 });
    http.routes['/act'] = ({ response }) => json(response, 200, { count: 'three' });
    await expect(ask()).rejects.toMatchObject({ code: 'engine_error', message: expect.stringContaining('count') });
    refusing(200, { message: 'out of memory' });
    await expect(ask()).rejects.toMatchObject({ message: expect.stringContaining('out of memory') });
  });

  it('resolve with the metrics as text, or with null when the server has none', async () => {
    const server = plain();
    expect(await server.metrics(never)).toBeNull();
    http.routes['GET /metrics'] = ({ response }) => void response.end('requests 1\n');
    expect(await server.metrics(never)).toBe('requests 1\n');
    http.routes['GET /metrics'] = ({ response }) => json(response, 500, { error: { message: 'no' } });
    await expect(server.metrics(never)).rejects.toMatchObject({ code: 'engine_error' });
  });
});

describe('CallHealth', () => {
  it('is healthy according to the last call that concerns the engine', async () => {
    const server = plain();
    const calls = new CallHealth(server.engineId);
    const failing = (error: unknown): Promise<unknown> => calls.track(() => Promise.reject(error)).catch((e) => e);
    await failing(server.error('engine_unavailable', 'gone'));
    expect(calls.healthy).toBe(false);
    await failing(new Error('not of the engine'));
    expect(calls.healthy).toBe(false);
    await calls.track(() => Promise.resolve());
    expect(calls.healthy).toBe(true);
    await failing(server.error('engine_error', 'garbage'));
    expect(calls.healthy).toBe(false);
    await failing(server.error('unsupported', 'not that'));
    expect(calls.healthy).toBe(true);
  });

  it('counts calls until they end', async () => {
    const calls = new CallHealth('eng-1');
    let end = (): void => {};
    const call = calls.track(() => new Promise<void>((resolve) => (end = resolve)));
    const other = calls.track(() => Promise.reject(new Error('no')));
    expect(calls.inflight).toBe(2);
    await expect(other).rejects.toThrow('no');
    expect(calls.inflight).toBe(1);
    end();
    await call;
    expect(calls.inflight).toBe(0);
  });

  it("adds the engine id to a parser's errors once, and leaves other errors unchanged", async () => {
    const calls = new CallHealth('eng-1');
    const thrown = (error: unknown): Promise<unknown> =>
      calls.track(() => Promise.reject(error)).catch((error: unknown) => error);
    const named = await thrown(invalidReply('ids are missing', undefined, { lost_ids: true }));
    expect(named).toMatchObject({
      message: "engine eng-1: the engine's reply cannot be recorded: ids are missing",
      details: { engine_id: 'eng-1', lost_ids: true },
    });
    expect(await thrown(named)).toBe(named);
    const reason = new Error('enough');
    expect(await thrown(reason)).toBe(reason);
  });
});
