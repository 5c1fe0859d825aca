import { VirtualClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { createSglangEngine } from '../../../src/engines/sglang/engine.ts';
import { generateAsPool } from '../pool-call.ts';
import { json, sendStream } from '../scripted-server.ts';
import { type Age, askRequest, promptIdsOf, type Script, SglangScript } from './scripted-sglang.ts';

const AGES: Age[] = ['meta_info', 'token_ids', 'sglext', 'stream_ids'];
const never = new AbortController().signal;
const clock = new VirtualClock();
let server: SglangScript;
let engine: Engine;
const notices: string[] = [];

async function start(
  script: Partial<Script> = {},
  spec: object = {},
  unknownFields: readonly string[] = [],
): Promise<void> {
  server = new SglangScript(script);
  server.http.unknownFields = [...unknownFields];
  await connect(spec);
}

async function connect(spec: object = {}): Promise<void> {
  await server.http.listen();
  engine = await createSglangEngine(
    engineSpecSchema.parse({ kind: 'sglang', base_url: server.http.baseUrl, ...spec }),
    { clock, notice: (message) => void notices.push(message) },
  );
}

const generate = (over: Partial<GenerateRequest> = {}): Promise<GenerateReply> =>
  generateAsPool(engine, askRequest(over), never);

afterEach(async () => {
  await engine?.close();
  await server?.http.close();
  notices.length = 0;
});

const PROMPT = promptIdsOf([{ role: 'user', content: 'hi  é' }]);

describe('requests to SGLang', () => {
  it("send messages and tools unchanged, with explicit sampling and the call's id", async () => {
    await start({}, { api_key: 'k' });
    await generate({
      tools: [{ type: 'function', function: { name: 'f' } }],
      toolsText: '[{"type":"function", "function":{"name":"f"}}]',
      toolChoice: 'required',
      parallelToolCalls: false,
      stop: ['END'],
      policyVersion: 'v7',
    });
    const [call] = server.calls();
    expect(call?.text).toContain('"messages":[{"role":"user","content":"hi  \\u00e9"}]');
    expect(call?.text).toContain('"tools":[{"type":"function", "function":{"name":"f"}}]');
    expect(call?.body).toMatchObject({
      model: 'toy',
      rid: 'cpl_mine',
      temperature: 0.7,
      top_p: 1,
      top_k: -1,
      min_p: 0,
      repetition_penalty: 1,
      max_tokens: 50,
      stop: ['END'],
      seed: 9,
      tool_choice: 'required',
      parallel_tool_calls: false,
      stream: false,
      logprobs: true,
      separate_reasoning: true,
      cache_salt: 'v7',
      return_meta_info: true,
      return_token_ids: true,
    });
    expect(call?.headers).toMatchObject({ 'x-smg-routing-key': 'ses_1', authorization: 'Bearer k' });
  });

  it('leave the choice about parallel tool calls to the server when the request makes none', async () => {
    await start();
    await generate({
      tools: [{ type: 'function', function: { name: 'f' } }],
      toolsText: '[{"type":"function","function":{"name":"f"}}]',
    });
    expect(server.calls()[0]?.body).toHaveProperty('tools');
    expect(server.calls()[0]?.body).not.toHaveProperty('parallel_tool_calls');
  });

  it('have no cache salt when the server refuses the field', async () => {
    await start({}, {}, ['cache_salt']);
    expect(engine.info().capabilities.cache_salt).toBe(false);
    expect(await generate({ policyVersion: 'v7' })).toMatchObject({ finishReason: 'stop' });
  });

  it('leave out a token limit above the context length, and one that the server refuses because of the prompt', async () => {
    await start();
    await generate({ maxTokens: 32_000 });
    expect(server.calls()[0]?.body).not.toHaveProperty('max_tokens');
    server.script.answer = ({ body, response }) => {
      const message = "Requested token count exceeds the model's maximum context length of 4096 tokens.";
      if ('max_tokens' in body) json(response, 400, { object: 'error', message, type: 'BadRequest', code: 400 });
      else json(response, 200, server.chatReply(body));
    };
    expect(await generate({ maxTokens: 4_000 })).toMatchObject({ finishReason: 'stop' });
    expect(server.calls().map(({ body }) => body.max_tokens)).toEqual([undefined, 4_000, undefined]);
  });

  it('pause and resume the server, and read its metrics', async () => {
    await start();
    await engine.pause('keep', never);
    await engine.pause('abort', never);
    await engine.resume(never);
    const controlRequests = server.http.received.filter(
      ({ path, method }) => /pause|continue/.test(path) && method === 'POST',
    );
    expect(controlRequests.map(({ path, body }) => [path, body.mode])).toEqual([
      ['/pause_generation', 'in_place'],
      ['/pause_generation', 'abort'],
      ['/continue_generation', undefined],
    ]);
    expect(await engine.metrics(never)).toBe('sglang:num_running_reqs 1\n');
  });
});

describe.each(AGES)('an adapter of a server that reports ids by %s', (age) => {
  it('finds the ids of reply and prompt', async () => {
    await start({ age });
    const reply = await generate();
    expect([...reply.promptIds]).toEqual(PROMPT);
    expect([...reply.responseIds]).toEqual([11, 12, 2]);
    expect([...reply.responseLogprobs]).toEqual([-0.25, -0.5, -0.75]);
    expect(reply).toMatchObject({ finishReason: 'stop', stop: { kind: 'token', id: 2 } });
    expect(reply.usage).toEqual({ prompt_tokens: PROMPT.length, completion_tokens: 3, cached_tokens: 0 });
    expect(engine.info().capabilities.notes[0]).toBe(`token ids: ${age}`);
  });

  it('relays streams that have all ids, with the same content', async () => {
    await start({ age });
    const exact = age === 'sglext' || age === 'stream_ids';
    expect(engine.info().streaming).toBe(exact);
    const relayed: unknown[] = [];
    const listener = {
      started: (tokens: number | null) => void relayed.push(tokens),
      delta: (delta: unknown) => void relayed.push(delta),
    };
    const { usage: wholeUsage, ...whole } = await generate();
    const { usage, ...streamed } = await generate({ listener });
    expect(streamed).toEqual(whole);
    expect({ ...usage, cached_tokens: 0 }).toEqual(wholeUsage);
    const known = age === 'stream_ids' ? PROMPT.length : null;
    expect(relayed).toEqual(exact ? [known, { kind: 'text', text: 'Hello.' }] : []);
    const sent = server.calls().at(-1)?.body;
    expect(sent?.stream).toBe(exact);
    expect(sent?.stream_options).toEqual(exact ? { include_usage: true } : undefined);
  });

  it('detects at registration that streams lack the last log-probability', async () => {
    await start({ age, losesLast: true });
    expect(engine.info().streaming).toBe(false);
  });
});

it('an engine rejects a stream that loses ids later, and streams no more', async () => {
  await start({ age: 'sglext' });
  server.script.losesLast = true;
  const listener = { started: () => {}, delta: () => {} };
  await expect(generate({ listener })).rejects.toMatchObject({ code: 'engine_error', details: { lost_ids: true } });
  expect(engine.info().streaming).toBe(false);
  expect(notices).toHaveLength(1);
  expect(await generate({ listener })).toMatchObject({ finishReason: 'stop' });
});

describe('a parsed reply', () => {
  it('has calls, and the cause of its end even if the server does not report it', async () => {
    await start({ text: '[[sh {"b":1}]]', ids: [11, 2] });
    const reply = await generate({ tools: [{ type: 'function', function: { name: 'sh' } }] });
    expect(reply.finishReason).toBe('tool_calls');
    expect(reply.message).toMatchObject({ content: null, tool_calls: [{ id: 'call_0', function: { name: 'sh' } }] });
    expect(reply.stop).toEqual({ kind: 'token', id: 2 });
    server.script.ids = [11, 12];
    expect((await generate({ stop: ['END'] })).stop).toBeNull();
  });

  it.each([
    ['a stop string', { type: 'stop', matched: 'END' }, { kind: 'string', text: 'END' }],
    ['a stop token', { type: 'stop', matched: 99 }, { kind: 'token', id: 99 }],
    ['the length', { type: 'length', length: 3 }, null],
    ['an abort', { type: 'abort', message: 'weights' }, null],
  ])('reports that %s ended the reply', async (_, finish, stop) => {
    await start();
    server.script.finish = finish;
    expect(await generate()).toMatchObject({ finishReason: finish.type, stop });
  });

  it('may have its ids in two fields', async () => {
    await start();
    server.script.spoil = (reply) => ({ ...reply, sglext: { output_ids: [[11, 12, 2]] } });
    expect([...(await generate()).responseIds]).toEqual([11, 12, 2]);
  });

  it('is unavailable when it was aborted before its first token', async () => {
    await start();
    Object.assign(server.script, { ids: [], finish: { type: 'abort', message: 'weights' } });
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_unavailable',
      message: expect.stringMatching(/aborted the reply before its first token/),
    });
  });

  it('has the number of cached tokens from either field that may contain it', async () => {
    await start({ meta: { cached_tokens: 3 } });
    expect((await generate()).usage.cached_tokens).toBe(3);
    server.script.meta = { cached_tokens: null };
    server.script.spoil = (reply) => ({
      ...reply,
      usage: { ...(reply.usage as object), prompt_tokens_details: { cached_tokens: 2 } },
    });
    expect((await generate()).usage.cached_tokens).toBe(2);
  });

  it('has the version spans unchanged', async () => {
    const spans = [
      { version: '4', start: 0, end: 1 },
      { version: '5', start: 1, end: 3 },
    ];
    await start({ meta: { weight_versions: spans } });
    expect(engine.info().capabilities.version_spans).toBe(true);
    expect((await generate({ policyVersion: '4' })).versionSpans).toEqual(spans);
  });

  it('has the version from before and the end when there are no spans', async () => {
    await start({ modelInfo: { weight_version: '7' } });
    expect(engine.info().policy_version).toBe('7');
    expect((await generate()).versionSpans).toEqual([{ version: '7', start: 0, end: 3 }]);
    server.script.modelInfo = { weight_version: '8' };
    expect((await generate()).versionSpans).toEqual([{ version: null, start: 0, end: 3 }]);
    clock.advance(1_000);
    expect((await generate()).versionSpans).toEqual([{ version: '8', start: 0, end: 3 }]);
  });

  it("has the assigned version when the server's weights have none", async () => {
    await start();
    expect((await generate()).versionSpans).toEqual([{ version: null, start: 0, end: 3 }]);
    engine.setPolicyVersion('step-3');
    expect((await generate()).versionSpans).toEqual([{ version: 'step-3', start: 0, end: 3 }]);
    server.script.answer = ({ body, response }) => {
      engine.setPolicyVersion('step-4');
      json(response, 200, server.chatReply(body));
    };
    expect((await generate()).versionSpans).toEqual([{ version: null, start: 0, end: 3 }]);
  });
});

describe('routed experts', () => {
  const shape = { num_hidden_layers: 2, num_experts_per_tok: 2 };
  const withExperts = { serverInfo: { enable_return_routed_experts: true } };
  const rows = (count: number) =>
    Buffer.from(new Int32Array(count * 4).map((_, index) => index).buffer).toString('base64');

  it("are read in the model's shape", async () => {
    await start({ ...withExperts, modelInfo: shape });
    const count = PROMPT.length + 3 - 1;
    server.script.meta = { routed_experts: rows(count) };
    const { routedExperts } = await generate();
    expect(server.calls().at(-1)?.body.return_routed_experts).toBe(true);
    expect(routedExperts).toMatchObject({ dtype: 'int32', shape: [count, 2, 2], start: 0 });
    expect(routedExperts?.data.readInt32LE(20)).toBe(5);
    server.script.meta = { routed_experts: rows(count + 1) };
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/routed_experts has/),
    });
  });

  it('are not requested when their shape is unknown, which is noted', async () => {
    await start(withExperts);
    expect((await generate()).routedExperts).toBeNull();
    expect(server.calls().at(-1)?.body).not.toHaveProperty('return_routed_experts');
    expect(engine.info().capabilities.notes.join()).toMatch(/routed experts are not requested/);
  });
});

type Reply = Record<string, unknown>;

function withChoice(reply: Reply, over: object): Reply {
  const [choice] = reply.choices as object[];
  return { ...reply, choices: [{ ...choice, ...over }] };
}

function withMeta(reply: Reply, over: object): Reply {
  const [choice] = reply.choices as { meta_info: object }[];
  return withChoice(reply, { meta_info: { ...choice?.meta_info, ...over } });
}

const tuples = (values: unknown[]) => ({ output_token_logprobs: values });
const GOOD = [
  [-0.25, 11, null],
  [-0.5, 12, null],
  [-0.75, 2, null],
];

describe('an invalid reply', () => {
  const cases: [string, (reply: Reply) => unknown, RegExp][] = [
    ['no prompt ids', (r) => withChoice(r, { prompt_token_ids: null }), /prompt_token_ids is missing/],
    ['prompt ids that are not token ids', (r) => withChoice(r, { prompt_token_ids: [1, -5] }), /prompt_token_ids/],
    [
      'prompt ids that do not match the usage',
      (r) => withChoice(r, { prompt_token_ids: [1] }),
      /prompt_token_ids has 1 ids/,
    ],
    ['no ids at all', (r) => withChoice(r, { token_ids: null, meta_info: null }), /token ids are missing/],
    ['ids that are not token ids', (r) => withChoice(r, { token_ids: [11, 1.5, 2] }), /token_ids/],
    ['one id too few', (r) => withChoice(r, { token_ids: [11, 12] }), /token_ids has 2 ids/],
    [
      'ids of another reply',
      (r) => withChoice(r, { token_ids: [11, 13, 2] }),
      /logprobs\.1 is of token_id:12, but .* 13/,
    ],
    [
      'logprobs shifted against the ids',
      (r) => withMeta(r, tuples([...GOOD.slice(1), GOOD[0]])),
      /logprobs\.0 is of token_id:12/,
    ],
    [
      'no logprobs',
      (r) => withMeta(withChoice(r, { logprobs: null }), { output_token_logprobs: null }),
      /token ids are missing|logprobs.content is missing|entries/,
    ],
    [
      "one logprob too few in OpenAI's notation",
      (r) =>
        withMeta(withChoice(r, { logprobs: { content: [{ logprob: -1 }, { logprob: -1 }] } }), {
          output_token_logprobs: null,
        }),
      /logprobs\.content has 2 entries for 3 token_ids/,
    ],
    ['one logprob too few', (r) => withMeta(r, tuples(GOOD.slice(1))), /2 entries for 3 token_ids/],
    [
      'a logprob of null',
      (r) => withMeta(r, tuples([[null, 11], ...GOOD.slice(1)])),
      /logprobs\.0 is not a finite number/,
    ],
    ['a logprob above 0', (r) => withMeta(r, tuples([[0.5, 11], ...GOOD.slice(1)])), /logprobs\.0 is 0.5, above 0/],
    ['a logprob without a tuple', (r) => withMeta(r, tuples([-0.25, ...GOOD.slice(1)])), /logprobs\.0 has no token id/],
    ['a tuple without an id', (r) => withMeta(r, tuples([[-1], ...GOOD.slice(1)])), /logprobs\.0 has no token id/],
    [
      'usage that does not match the ids',
      (r) => ({ ...r, usage: { prompt_tokens: PROMPT.length, completion_tokens: 4 } }),
      /token_ids has 3 ids/,
    ],
    ['no usage', ({ usage: _, ...rest }) => rest, /usage/],
    ['two lists of ids that differ', (r) => ({ ...r, sglext: { output_ids: [[11, 12, 3]] } }), /are not the same/],
    [
      'version spans that end early',
      (r) => withMeta(r, { weight_versions: [{ version: '1', start: 0, end: 2 }] }),
      /cover 2 of 3/,
    ],
    ['an unknown finish reason', (r) => withChoice(r, { finish_reason: 'content_filter' }), /"content_filter"/],
    ['two choices', (r) => ({ ...r, choices: [...(r.choices as []), ...(r.choices as [])] }), /choices/],
    ['the id of another call', (r) => ({ ...r, id: 'cpl_other' }), /answers cpl_other/],
    ['the id of another call inside', (r) => withMeta(r, { id: 'cpl_other' }), /answers cpl_other/],
    ['another model', (r) => ({ ...r, model: 'other' }), /model is "other"/],
    ['an error with status 200', () => ({ object: 'error', message: 'broken' }), /error inside: broken/],
    ['an unrelated body', () => 'hello', /body/],
    [
      'no sampled token',
      (r) =>
        withMeta(
          withChoice({ ...r, usage: { prompt_tokens: PROMPT.length, completion_tokens: 0 } }, { token_ids: [] }),
          tuples([]),
        ),
      /no token was sampled|entries/,
    ],
  ];
  it.each(cases)('is rejected with an error that names the fault: %s', async (_, spoil, message) => {
    await start();
    server.script.spoil = spoil;
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', message: expect.stringMatching(message) });
    expect(engine.info()).toMatchObject({ healthy: false, inflight: 0 });
  });

  it.each([
    ['an infinite logprob', (text: string) => text.replaceAll('-0.25', '-1e999'), /finite/],
    ['NaN, which is not JSON', (text: string) => text.replace('-0.25', 'NaN'), /not JSON/],
    ['garbage', () => '<html>bad gateway</html>', /not JSON/],
  ])('is rejected with an error that names the fault: %s', async (_, change, message) => {
    await start();
    server.script.answer = ({ body, response }) =>
      void response.writeHead(200).end(change(JSON.stringify(server.chatReply(body))));
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', message: expect.stringMatching(message) });
  });
});

describe('server failures', () => {
  it.each([
    [400, 'engine_rejected'],
    [401, 'engine_error'],
    [404, 'engine_error'],
    [429, 'engine_unavailable'],
    [500, 'engine_error'],
    [503, 'engine_unavailable'],
  ])('status %d is reported as %s', async (status, code) => {
    await start();
    server.script.answer = ({ response }) =>
      json(response, status, { object: 'error', message: 'what happened' }, { 'retry-after': '3' });
    const failure = await generate().catch((error: unknown) => error);
    expect(failure).toMatchObject({ code, details: { status }, message: expect.stringMatching(/what happened$/) });
    if (code === 'engine_unavailable') expect(failure).toMatchObject({ details: { retry_after_ms: 3_000 } });
  });

  it.each([
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    'Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens).',
  ])('an overlong prompt is recognised and keeps its message: %s', async (message) => {
    await start();
    server.script.answer = ({ response }) => json(response, 400, { object: 'error', message, code: 400 });
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_rejected',
      message,
      details: { context_overflow: true },
    });
  });

  it.each([false, true])(
    'reject with an error for a truncated reply, because tokens were sampled; streamed: %s',
    async (stream) => {
      await start({ age: 'stream_ids' });
      server.script.answer = ({ response }) => {
        response.writeHead(200, stream ? { 'content-type': 'text/event-stream' } : { 'content-length': 1000 });
        response.write(stream ? 'data: {"id":"cpl_mine","choices":[]}\n\n' : '{"id":', () => response.destroy());
      };
      const listener = { started: () => {}, delta: () => {} };
      await expect(generate(stream ? { listener } : {})).rejects.toMatchObject({ code: 'engine_error' });
    },
  );

  it.each([
    ['lacks its prompt ids', {}, {}, /prompt_token_ids is missing/],
    [
      'has its prompt ids twice',
      { prompt_token_ids: PROMPT },
      { prompt_token_ids: PROMPT },
      /prompt_token_ids comes twice/,
    ],
  ])('reject with an error for a stream that %s', async (_, first, second, message) => {
    await start({ age: 'stream_ids' });
    const delta = { content: 'a' };
    const logprobs = { content: [{ logprob: -0.5 }] };
    server.script.answer = ({ response }) =>
      sendStream(response, [
        { id: 'cpl_mine', choices: [{ index: 0, delta, token_ids: [11], logprobs, ...first }] },
        { id: 'cpl_mine', choices: [{ index: 0, delta: {}, finish_reason: 'stop', ...second }] },
        { id: 'cpl_mine', choices: [], usage: { prompt_tokens: PROMPT.length, completion_tokens: 1 } },
      ]);
    const listener = { started: () => {}, delta: () => {} };
    const refused = { code: 'engine_error', message: expect.stringMatching(message) };
    await expect(generate({ listener })).rejects.toMatchObject(refused);
  });

  it('reject with an error for a stream that ends early', async () => {
    await start({ age: 'stream_ids' });
    server.script.answer = ({ response }) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.end('data: {"id":"cpl_mine","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n');
    };
    const listener = { started: () => {}, delta: () => {} };
    await expect(generate({ listener })).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/broke off/),
    });
  });

  it('reject with the reason of the signal on an abort, which ends the call by its id', async () => {
    await start();
    const controller = new AbortController();
    const aborted = new Promise<unknown>((resolve) => {
      server.http.routes['/abort_request'] = ({ body, response }) => {
        json(response, 200, {});
        resolve(body.rid);
      };
      server.script.answer = () => controller.abort(new Error('enough'));
    });
    await expect(engine.generate(askRequest(), controller.signal)).rejects.toThrow('enough');
    expect(await aborted).toBe('cpl_mine');
    expect(engine.info().inflight).toBe(0);
  });

  it('reject with the reason of the signal without a further request when the server cannot abort calls', async () => {
    server = new SglangScript();
    delete server.http.routes['/abort_request'];
    await connect();
    const { capabilities } = engine.info();
    expect(capabilities.abort).toBe(false);
    expect(capabilities.notes).toContain('calls cannot be aborted by id');
    const controller = new AbortController();
    server.script.answer = () => controller.abort(new Error('enough'));
    const sent = server.http.received.length;
    await expect(engine.generate(askRequest(), controller.signal)).rejects.toThrow('enough');
    // The engine sends the requests that the abort causes before this request.
    await engine.metrics(never);
    const paths = server.http.received.slice(sent).map(({ path }) => path);
    expect(paths).toEqual(['/v1/chat/completions', '/metrics']);
  });
});
