import { VirtualClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { startSim } from '@floe-rl/sim';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Engine } from '../../../src/engines/engine.ts';
import { createVllmEngine } from '../../../src/engines/vllm/engine.ts';
import { generateAsPool } from '../pool-call.ts';
import { json, type Received, ScriptedServer, vllmReply } from '../scripted-server.ts';
import { DERENDER, GENERATE, RENDER, serveTokens, tokenRequest } from './scripted-tokens.ts';

let server: ScriptedServer;
let engine: Engine | null = null;

beforeEach(async () => {
  server = new ScriptedServer((received) => json(received.response, 200, vllmReply(received)));
  await server.listen();
});
afterEach(async () => {
  await engine?.close();
  engine = null;
  await server.close();
});

const never = (): AbortSignal => new AbortController().signal;
const chatRequest = (over = {}) => tokenRequest({ prompt: null, ...over });

async function connect(over: object = {}): Promise<Engine> {
  const spec = engineSpecSchema.parse({ base_url: server.baseUrl, ...over });
  engine = await createVllmEngine(spec, { clock: new VirtualClock() });
  return engine;
}

const capabilities = async () => (await connect()).info().capabilities;
const posts = (path: string): Received[] =>
  server.received.filter((received) => received.method === 'POST' && received.path === path);

/** Adds the endpoints to pause, resume and abort, which vLLM has only in development mode. */
function serveControl(): void {
  server.routes['GET /is_paused'] = ({ response }) => json(response, 200, { is_paused: false });
  server.routes['/pause'] = ({ response }) => json(response, 200, { status: 'paused' });
  server.routes['/resume'] = ({ response }) => json(response, 200, { status: 'resumed' });
  server.routes['/abort_requests'] = ({ response }) => json(response, 200, { status: 'aborted', aborted: 1 });
}

describe('probing a server', () => {
  it('samples only two tokens, which show the logprobs mode, and aborts and pauses nothing', async () => {
    serveTokens(server);
    serveControl();
    await connect();
    expect(server.chats).toEqual([]);
    expect(server.logprobsProbes.map(({ body }) => body.max_tokens)).toEqual([1, 1]);
    expect(posts(GENERATE)).toEqual([]);
    expect(posts('/pause')).toEqual([]);
    expect(posts('/resume')).toEqual([]);
    expect(posts('/abort_requests')).toEqual([]);
  });

  it('finds every capability', async () => {
    serveTokens(server);
    serveControl();
    server.routes['GET /version'] = ({ response }) => json(response, 200, { version: '0.32.0' });
    const info = (await connect()).info();
    expect(info).toMatchObject({
      model: 'toy',
      max_model_len: 4096,
      server_version: '0.32.0',
      logprobs_mode: 'processed',
    });
    expect(info.capabilities).toMatchObject({
      token_ids: true,
      token_input: 'generate',
      pause: true,
      abort: true,
      cache_salt: true,
      version_spans: false,
      template: { close_ids: [2] },
    });
    expect(info.capabilities.notes).toEqual(['prompts can be given as token ids']);
  });

  it('renders by /tokenize when it was started without token generation', async () => {
    for (const path of [GENERATE, RENDER, DERENDER]) {
      server.routes[path] = ({ response }) =>
        json(response, 403, { error: { message: 'disabled', type: 'PermissionDeniedError', param: null, code: 403 } });
    }
    const { token_input, notes } = await capabilities();
    expect(token_input).toBe('none');
    expect(notes).toContainEqual(expect.stringMatching(/there is no .*generate, .*render, .*derender/));
    const { completionId, sessionId, pool, messageTexts, toolsText } = chatRequest();
    const rendering = { completionId, sessionId, pool, messageTexts, toolsText, generationPrompt: true };
    expect((await engine?.render(rendering, never()))?.length).toBeGreaterThan(0);
  });

  it.each([GENERATE, RENDER, DERENDER])('notes that it has no %s', async (path) => {
    serveTokens(server);
    delete server.routes[path];
    const { token_input, notes } = await capabilities();
    expect(token_input).toBe('none');
    expect(notes).toContainEqual(expect.stringContaining(path));
  });

  it('notes each route that it lacks without its development mode', async () => {
    serveTokens(server);
    expect((await capabilities()).notes).toEqual([
      'prompts can be given as token ids',
      'there is no /pause (VLLM_SERVER_DEV_MODE=1)',
      'there is no /abort_requests (VLLM_SERVER_DEV_MODE=1); a call ends with its connection',
    ]);
  });

  it('notes why its parsers fail', async () => {
    serveTokens(server);
    server.routes[DERENDER] = ({ response }) =>
      json(response, 400, { error: { message: 'no tool parser of that name' } });
    const { token_input, notes } = await capabilities();
    expect(token_input).toBe('none');
    expect(notes).toContain('its parsers cannot be used: no tool parser of that name');
  });

  it('notes why its template fails', async () => {
    server.onTokenize = ({ response }) => json(response, 500, { error: { message: 'no chat template' } });
    const { template, notes } = await capabilities();
    expect(template.close_ids).toEqual([]);
    expect(notes).toContainEqual(expect.stringMatching(/its template cannot be probed: .*no chat template/));
  });

  it('rejects when it cannot be reached', async () => {
    const spec = engineSpecSchema.parse({ base_url: server.baseUrl });
    await server.close();
    const attempt = createVllmEngine(spec, { clock: new VirtualClock() });
    await expect(attempt).rejects.toMatchObject({ code: 'engine_unavailable' });
    await server.listen();
  });

  it('rejects when it lists no models, or not the requested one', async () => {
    await expect(connect({ model: 'other' })).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/does not serve other, but toy/),
    });
    server.models = [];
    await expect(connect()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/model list/),
    });
  });

  it('accepts replies with any name of its model', async () => {
    server.models = [
      { id: 'alias', root: '/models/toy' },
      { id: 'toy', root: '/models/toy' },
      { id: 'else', root: '/b' },
    ];
    const named = await connect();
    expect(named.info().model).toBe('alias');
    await expect(named.generate(chatRequest(), never())).resolves.toMatchObject({ finishReason: 'stop' });
    server.onChat = (received) => json(received.response, 200, { ...vllmReply(received), model: 'else' });
    await expect(named.generate(chatRequest(), never())).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/model is "else", at registration it was alias or toy/),
    });
  });
});

describe('a strict server', () => {
  it('is never sent a field that it refuses', async () => {
    server.unknownFields = [
      'stream_interval',
      'return_tokens_as_token_ids',
      'include_reasoning',
      'cache_salt',
      'top_k',
    ];
    const { token_ids, cache_salt, notes } = await capabilities();
    expect({ token_ids, cache_salt }).toEqual({ token_ids: true, cache_salt: false });
    expect(notes).toContainEqual(expect.stringMatching(/refuses the fields stream_interval, .*; they are left out/));
    const request = chatRequest({ policyVersion: 'v1', sampling: samplingSchema.parse({}) });
    const reply = await engine?.generate(request, never());
    expect([...(reply?.responseIds ?? [])]).toEqual([11, 12, 2]);
    for (const field of server.unknownFields) expect(server.chats[0]?.body).not.toHaveProperty(field);
    expect(server.chats[0]?.body).toMatchObject({ return_token_ids: true, logprobs: true, min_p: 0 });
  });

  it('rejects sampling that needs an unknown field', async () => {
    server.unknownFields = ['top_k'];
    await connect();
    await expect(engine?.generate(chatRequest(), never())).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(/top_k/),
    });
    expect(server.chats).toEqual([]);
  });

  it.each(['return_token_ids', 'logprobs'])('that refuses %s gives text, and nothing to train on', async (field) => {
    server.unknownFields = [field];
    server.onChat = (received) => {
      const { prompt_token_ids: _, ...reply } = vllmReply(received);
      json(received.response, 200, {
        ...reply,
        choices: (reply.choices as object[]).map((c) => ({ ...c, token_ids: null })),
      });
    };
    const { token_ids, token_input } = await capabilities();
    expect({ token_ids, token_input }).toEqual({ token_ids: false, token_input: 'none' });
    expect(engine?.info()).toMatchObject({ logprobs_mode: null, streaming: false });
    const reply = await engine?.generate(chatRequest(), never());
    expect(reply).toMatchObject({
      message: { content: 'Hello.' },
      logprobsMode: null,
      versionSpans: [],
      usage: { prompt_tokens: 4, completion_tokens: 3 },
    });
    expect(reply?.responseIds).toHaveLength(0);
    expect(server.chats[0]?.body).not.toHaveProperty(field);
  });

  it('is probed with its own model when it refuses unknown models like unknown fields', async () => {
    server.unknownFields = ['stream_interval'];
    server.routes['/v1/chat/completions'] = (received) => {
      const { body, response } = received;
      if (body.model !== 'toy' || 'stream_interval' in body) return json(response, 400, { error: { message: 'no' } });
      json(response, 200, vllmReply(received));
    };
    const { notes } = await capabilities();
    expect(notes).toContainEqual(expect.stringMatching(/refuses the fields stream_interval;/));
  });

  it('refuses no request of the adapter when the simulated engine acts as one', async () => {
    const sim = await startSim({ strict: true, scaleOut: true });
    const strict = await createVllmEngine(engineSpecSchema.parse({ base_url: sim.url }), { clock: new VirtualClock() });
    await expect(strict.generate(chatRequest(), never())).resolves.toMatchObject({ finishReason: 'stop' });
    expect(strict.info().capabilities).toMatchObject({ token_ids: true, token_input: 'generate' });
    expect(sim.ledger.entries({ requestId: 'cpl_mine' })).toHaveLength(1);
    await strict.close();
    await sim.close();
  });
});

describe('an API key', () => {
  it('is sent with every request, and never shown', async () => {
    serveTokens(server);
    serveControl();
    const key = 'a-very-secret-key';
    const own = await connect({ api_key: key });
    await own.generate(chatRequest(), never());
    await own.generate(tokenRequest(), never());
    await own.pause('keep', never());
    await own.metrics(never());
    for (const { headers } of server.received) expect(headers.authorization).toBe(`Bearer ${key}`);
    expect(JSON.stringify(own.info())).not.toContain(key);
    server.onChat = ({ response }) => json(response, 401, { error: { message: 'wrong key' } });
    const failure = await own.generate(chatRequest(), never()).catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'engine_error' });
    expect(JSON.stringify(failure) + String((failure as Error).stack)).not.toContain(key);
  });
});

describe('control of a server', () => {
  it('pauses the server in either mode, and resumes it', async () => {
    serveControl();
    const own = await connect();
    await own.pause('keep', never());
    await own.pause('abort', never());
    await own.resume(never());
    const paths = server.received.filter(({ method }) => method === 'POST').map(({ path }) => path);
    expect(paths.filter((path) => /pause|resume/.test(path))).toEqual([
      '/pause?mode=keep',
      '/pause?mode=abort',
      '/resume',
    ]);
  });

  it("rejects with the server's message", async () => {
    serveControl();
    server.routes['/resume'] = ({ response }) => json(response, 500, { error: 'Failed to resume generation' });
    const own = await connect();
    await expect(own.resume(never())).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/Failed to resume/),
    });
  });

  it('is unsupported when the endpoints are missing', async () => {
    const own = await connect();
    expect(own.info().capabilities).toMatchObject({ pause: false, abort: false });
    await expect(own.pause('keep', never())).rejects.toMatchObject({ code: 'unsupported' });
    await expect(own.resume(never())).rejects.toMatchObject({ code: 'unsupported' });
  });

  it.each(['chat', 'tokens'] as const)(
    'ends a call in %s mode by its id when the signal aborts, and no other',
    async (mode) => {
      serveTokens(server);
      serveControl();
      const aborted = new Promise<Received>((resolve) => {
        server.routes['/abort_requests'] = (received) => {
          resolve(received);
          json(received.response, 200, { aborted: 1 });
        };
      });
      const own = await connect();
      const controller = new AbortController();
      const hang = (): void => controller.abort(new Error('enough'));
      server.onChat = hang;
      server.routes[GENERATE] = hang;
      const request = mode === 'chat' ? chatRequest() : tokenRequest();
      await expect(own.generate(request, controller.signal)).rejects.toThrow('enough');
      const prefix = mode === 'chat' ? 'chatcmpl' : 'generate-tokens';
      expect((await aborted).body).toEqual({ request_ids: [`${prefix}-cpl_mine`] });
    },
  );

  it('sends no abort for a call that ended before its signal aborted', async () => {
    serveControl();
    const own = await connect();
    const controller = new AbortController();
    await own.generate(chatRequest(), controller.signal);
    controller.abort();
    await own.metrics(never());
    expect(posts('/abort_requests')).toEqual([]);
  });

  it("returns the server's metrics, if it has any", async () => {
    const own = await connect();
    expect(await own.metrics(never())).toBe(null);
    server.routes['GET /metrics'] = ({ response }) => response.end('vllm:num_requests_running 3\n') && undefined;
    expect(await own.metrics(never())).toBe('vllm:num_requests_running 3\n');
    server.routes['GET /metrics'] = ({ response }) => json(response, 503, { error: { message: 'starting' } });
    await expect(own.metrics(never())).rejects.toMatchObject({ code: 'engine_unavailable' });
  });
});

describe('the policy version', () => {
  it('is the assigned version when the server reports none', async () => {
    const own = await connect();
    expect(own.info().policy_version).toBe(null);
    own.setPolicyVersion('12');
    expect(own.info().policy_version).toBe('12');
    const reply = await generateAsPool(own, chatRequest(), never());
    expect(reply.versionSpans).toEqual([{ version: '12', start: 0, end: 3 }]);
  });

  it('is unknown for a reply during which it was assigned', async () => {
    const own = await connect();
    own.setPolicyVersion('12');
    server.onChat = (received) => {
      own.setPolicyVersion('13');
      json(received.response, 200, vllmReply(received));
    };
    const reply = await generateAsPool(own, chatRequest(), never());
    expect(reply.versionSpans).toEqual([{ version: null, start: 0, end: 3 }]);
  });

  it('is the reported version, even if another was assigned', async () => {
    server.version = 'its-own';
    const own = await connect();
    own.setPolicyVersion('12');
    expect(own.info().policy_version).toBe('its-own');
    const reply = await generateAsPool(own, chatRequest(), never());
    expect(reply.versionSpans).toEqual([{ version: 'its-own', start: 0, end: 3 }]);
  });
});

describe('rendering messages', () => {
  const rendering = {
    completionId: 'cpl_mine',
    sessionId: 'ses_1',
    pool: 'default',
    messageTexts: ['{"role":"user","content":"hi"}'],
    toolsText: '[]',
    generationPrompt: false,
  };

  it('uses the renderer, with or without the generation prompt', async () => {
    serveTokens(server);
    const own = await connect();
    const without = await own.render(rendering, never());
    const opened = await own.render({ ...rendering, generationPrompt: true }, never());
    expect([...opened]).toEqual([...without, 3]);
    expect(posts(RENDER).at(-1)?.body).toEqual({
      model: 'toy',
      messages: [{ role: 'user', content: 'hi' }],
      add_generation_prompt: true,
    });
  });

  it('uses the tokenizer when there is no renderer', async () => {
    const own = await connect();
    expect([...(await own.render(rendering, never()))]).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  it('rejects images, whose ids are only placeholders', async () => {
    serveTokens(server, {
      rendered: (r) => ({ ...r, features: { mm_hashes: { image: ['abc'] }, mm_placeholders: {} } }),
    });
    const own = await connect();
    await expect(own.render(rendering, never())).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(/images/),
    });
  });

  const wrong: [string, unknown, RegExp][] = [
    ['no ids', { count: 3 }, /tokens is missing/],
    ['ids that do not match the usage', { tokens: [1, 2], count: 3 }, /tokens has 2 ids, but count is 3/],
    ['ids that are none', { tokens: [1, -2], count: 2 }, /tokens/],
    ['an error with status 200', { error: { message: 'broken' } }, /error inside: broken/],
  ];
  it.each(wrong)('rejects %s', async (_, body, message) => {
    const own = await connect();
    server.onTokenize = ({ response }) => json(response, 200, body);
    await expect(own.render(rendering, never())).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(message),
      details: { engine_id: own.info().engine_id },
    });
  });

  it('converts ids to text', async () => {
    const own = await connect();
    await expect(own.detokenize(Int32Array.of(1, 2), never())).rejects.toMatchObject({ code: 'unsupported' });
    await own.close();
    server.routes['/detokenize'] = ({ response, body }) => json(response, 200, { prompt: String(body.tokens) });
    expect(await (await connect()).detokenize(Int32Array.of(1, 2), never())).toBe('1,2');
  });
});
