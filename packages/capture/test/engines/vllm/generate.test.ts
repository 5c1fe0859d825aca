import { VirtualClock } from '@floe-rl/core';
import { type ChatTool, engineSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateRequest } from '../../../src/engines/engine.ts';
import { createVllmEngine } from '../../../src/engines/vllm/engine.ts';
import { impatientClock } from '../impatient-clock.ts';
import { generateAsPool } from '../pool-call.ts';
import { json, ScriptedServer } from '../scripted-server.ts';
import {
  callsOf,
  DERENDER,
  derenderedIds,
  GENERATE,
  type Json,
  RENDER,
  serveTokens,
  type TokenOptions,
  tokenRequest,
  withChoice,
} from './scripted-tokens.ts';

let server: ScriptedServer;
let engine: Engine | null = null;
let pauses: number[];
let notices: [string, Readonly<Record<string, unknown>>][];

beforeEach(async () => {
  server = new ScriptedServer(({ response }) => json(response, 500, {}));
  await server.listen();
  notices = [];
  pauses = [];
});
afterEach(async () => {
  await engine?.close();
  engine = null;
  await server.close();
});

async function connect(options: TokenOptions = {}): Promise<Engine> {
  serveTokens(server, options);
  engine = await createVllmEngine(engineSpecSchema.parse({ base_url: server.baseUrl, engine_id: 'the-engine' }), {
    clock: impatientClock((delayMs) => void pauses.push(delayMs)),
    notice: (message, details) => void notices.push([message, details]),
  });
  return engine;
}

const never = (): AbortSignal => new AbortController().signal;
const generate = async (options: TokenOptions = {}, over: Partial<GenerateRequest> = {}) =>
  generateAsPool(await connect(options), tokenRequest(over), never());

const tools: ChatTool[] = [{ type: 'function', function: { name: 'sh', parameters: { type: 'object' } } }];
const toolsText = '[{"type":"function",  "function":{"name":"sh"}}]';

describe('a prompt of ids', () => {
  it('is sent unchanged, with explicit sampling, and answered with ids and a message', async () => {
    const reply = await generate();
    const [call] = callsOf(server, GENERATE);
    expect(call?.body).toEqual({
      model: 'toy',
      token_ids: [1, 5, 6, 7],
      sampling_params: {
        temperature: 0.7,
        top_p: 1,
        top_k: 40,
        min_p: 0,
        repetition_penalty: 1,
        max_tokens: 50,
        seed: 9,
        logprobs: 0,
      },
      stream: false,
      return_token_ids: true,
    });
    expect(call?.headers['x-session-id']).toBe('ses_1');
    expect([...reply.promptIds]).toEqual([1, 5, 6, 7]);
    expect([...reply.responseIds]).toEqual([11, 12, 2]);
    expect([...reply.responseLogprobs]).toEqual([-0.25, -0.5, -0.75]);
    expect(reply).toMatchObject({
      logprobsMode: 'processed',
      message: { role: 'assistant', content: 'Hello.' },
      finishReason: 'stop',
      stop: { kind: 'token', id: 2 },
      usage: { prompt_tokens: 4, completion_tokens: 3, cached_tokens: 3 },
      versionSpans: [{ version: null, start: 0, end: 3 }],
    });
  });

  it('is sent as exactly its JSON text', async () => {
    const prompt = { ids: Int32Array.of(1, 22, 333), json: Buffer.from('1, 22,  333') };
    await generate({}, { prompt });
    expect(callsOf(server, GENERATE)[0]?.text).toContain('"token_ids":[1, 22,  333]');
  });

  it('always gets a bound, and never one beyond the context', async () => {
    server.maxModelLen = 20;
    const sent = async (maxTokens: number | null) => {
      await (engine ?? (await connect())).generate(tokenRequest({ maxTokens }), never());
      const params = callsOf(server, GENERATE).at(-1)?.body.sampling_params as Json | undefined;
      return params?.max_tokens;
    };
    expect([await sent(5), await sent(50), await sent(null)]).toEqual([5, 16, 16]);
  });

  it("is refused with the server's message when it fills the context", async () => {
    server.maxModelLen = 4;
    await connect();
    server.routes[GENERATE] = ({ response }) =>
      json(response, 400, { error: { message: 'longer than the maximum model length of 4', param: 'input_tokens' } });
    await expect(engine?.generate(tokenRequest(), never())).rejects.toMatchObject({
      code: 'engine_rejected',
      message: 'longer than the maximum model length of 4',
      details: { context_overflow: true },
    });
  });

  it('is sent with the salt of the prefix cache', async () => {
    await generate({}, { policyVersion: 'v7' });
    expect(callsOf(server, GENERATE)[0]?.body).toMatchObject({ cache_salt: 'v7' });
  });

  it.each(['[ 1, 5,6 , 7 ]', '\n  [1, 5, 6, 7]'])('may be returned in another notation: %j', async (notation) => {
    const spaced = await connect();
    server.routes[GENERATE] = ({ headers, response }) => {
      const head = `{"request_id":"generate-tokens-${String(headers['x-request-id'])}","prompt_token_ids": ${notation},`;
      const rest =
        '"choices":[{"token_ids":[9],"finish_reason":"length","logprobs":{"content":[{"token_id":9,"logprob":-1}]}}]}';
      response.writeHead(200, { 'content-type': 'application/json' }).end(head + rest);
    };
    const reply = await spaced.generate(tokenRequest(), never());
    expect(reply.usage).toEqual({ prompt_tokens: 4, completion_tokens: 1, cached_tokens: null });
    expect([...reply.promptIds]).toEqual([1, 5, 6, 7]);
  });

  it('may be left out of the reply when the usage has its length', async () => {
    const silent = await generate({ generated: ({ prompt_token_ids: _, ...reply }) => reply });
    expect([...silent.promptIds]).toEqual([1, 5, 6, 7]);
  });

  it('is answered with log-probabilities in the notation of older servers too', async () => {
    const content = [11, 12, 2].map((id) => ({ token: `token_id:${id}`, logprob: -1, bytes: null, top_logprobs: [] }));
    const reply = await generate({ generated: (r) => withChoice(r, { logprobs: { content } }) });
    expect([...reply.responseLogprobs]).toEqual([-1, -1, -1]);
  });

  it('is answered with version spans', async () => {
    const spans = [
      { version: '1', start: 0, end: 2 },
      { version: '2', start: 2, end: 3 },
    ];
    const reply = await generate(
      { generated: (r) => withChoice(r, { weight_versions: spans }) },
      { policyVersion: '1' },
    );
    expect(reply.versionSpans).toEqual(spans);
    expect(engine?.info().capabilities.version_spans).toBe(true);
  });

  it('is rejected by an engine that accepts none', async () => {
    engine = await createVllmEngine(engineSpecSchema.parse({ base_url: server.baseUrl }), {
      clock: new VirtualClock(),
    });
    expect(engine.info().capabilities.token_input).toBe('none');
    await expect(engine.generate(tokenRequest(), never())).rejects.toMatchObject({ code: 'unsupported' });
  });
});

describe('the message of sampled ids', () => {
  it('is parsed by the server, with all tools and without the conversation', async () => {
    const call = { id: 'abc', type: 'function', function: { name: 'sh', arguments: '{"b":1, "a": 2}' } };
    const message = { role: 'assistant', content: null, reasoning: 'hm', tool_calls: [call] };
    const reply = await generate(
      { message },
      { tools, toolsText, toolChoice: 'auto', messageTexts: ['{"role":"user","content":"secret"}'] },
    );
    expect(reply.message).toEqual({ role: 'assistant', content: null, reasoning_content: 'hm', tool_calls: [call] });
    expect(reply.finishReason).toBe('tool_calls');
    const [sentCall] = callsOf(server, DERENDER);
    expect(sentCall?.text).toContain(`"tools":${toolsText}`);
    expect(sentCall?.text).not.toContain('secret');
    expect(sentCall?.body).toMatchObject({
      model: 'toy',
      generate_response: { choices: [{ index: 0, token_ids: [11, 12], finish_reason: 'stop' }] },
      prompt_token_ids: [1, 5, 6, 7],
      chat_request: { model: 'toy', tool_choice: 'auto', include_reasoning: true },
    });
  });

  it('is parsed without the token that ended it, which parsers of text would show', async () => {
    const reply = await generate();
    expect(engine?.info().capabilities.template.close_ids).toEqual([2]);
    expect(reply.message.content).toBe('Hello.');
    expect(derenderedIds(callsOf(server, DERENDER)[0])).toEqual([11, 12]);
  });

  it('is parsed with the token that ended it, which parsers of ids need', async () => {
    const reply = await generate({ readsIds: true });
    expect(reply.message.content).toBe('Hello.');
    expect(derenderedIds(callsOf(server, DERENDER)[0])).toEqual([11, 12, 2]);
  });

  it('is accepted from parsers that report no usage', async () => {
    const reply = await generate({ derendered: ({ usage: _, ...rest }) => rest });
    expect(reply.message.content).toBe('Hello.');
  });

  it('is parsed with all ids when the bound ended the reply', async () => {
    await generate({ responseIds: [11, 12], generated: (r) => withChoice(r, { finish_reason: 'length' }) });
    expect(derenderedIds(callsOf(server, DERENDER)[0])).toEqual([11, 12]);
  });

  it('is empty without a request when only the closing token was sampled', async () => {
    const reply = await generate({ responseIds: [2] });
    expect(reply.message).toEqual({ role: 'assistant', content: '' });
    expect([...reply.responseIds]).toEqual([2]);
    expect(callsOf(server, DERENDER)).toEqual([]);
  });

  it('is requested repeatedly while the server is busy, without sampling once more', async () => {
    const own = await connect();
    const { [DERENDER]: derender } = server.routes;
    const busy = [503, 429];
    server.routes[DERENDER] = (received) => {
      const status = busy.shift();
      if (status === undefined) return derender?.(received);
      json(received.response, status, { error: { message: 'busy' } });
    };
    expect((await own.generate(tokenRequest(), never())).message.content).toBe('Hello.');
    expect(pauses).toEqual([50, 500]);
    expect(callsOf(server, GENERATE)).toHaveLength(1);
    expect(callsOf(server, DERENDER)).toHaveLength(3);
  });

  it('is an engine error when it cannot be parsed, since a retry would sample another reply', async () => {
    const own = await connect();
    server.routes[DERENDER] = ({ response }) => json(response, 503, { error: { message: 'busy' } });
    await expect(own.generate(tokenRequest(), never())).rejects.toMatchObject({
      code: 'engine_error',
      message: 'engine the-engine: the sampled reply could not be read: engine the-engine: busy',
    });
    expect(callsOf(server, GENERATE)).toHaveLength(1);
  });

  it('keeps calls that the parsers reject as text', async () => {
    const own = await connect();
    const { [DERENDER]: derender } = server.routes;
    server.routes[DERENDER] = (received) => {
      const { chat_request: chat } = received.body as { chat_request: { tool_choice?: unknown } };
      if (chat.tool_choice === 'none') return derender?.(received);
      json(received.response, 400, { error: { message: 'no such tool' } });
    };
    const reply = await own.generate(tokenRequest({ tools, toolsText, toolChoice: 'auto' }), never());
    expect(reply).toMatchObject({ message: { content: 'Hello.' }, finishReason: 'stop' });
    server.routes[DERENDER] = ({ response }) => json(response, 400, { error: { message: 'nothing works' } });
    await expect(own.generate(tokenRequest(), never())).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/could not be read: nothing works/),
    });
  });

  it('has one call when parallel calls are off', async () => {
    const calls = ['a', 'b'].map((id) => ({ id, type: 'function', function: { name: 'sh', arguments: '{}' } }));
    const message = { role: 'assistant', content: null, tool_calls: calls };
    const reply = await generate({ message }, { tools, toolsText, parallelToolCalls: false });
    expect(reply.message.tool_calls).toEqual([calls[0]]);
  });

  const stopped: [string, object, Json, object, object | null][] = [
    [
      'that the server names',
      { stop_reason: 'END' },
      { content: 'One END two' },
      { content: 'One ' },
      { kind: 'string', text: 'END' },
    ],
    ['that it does not name', {}, { content: 'One END two' }, { content: 'One ' }, { kind: 'string', text: 'END' }],
    [
      'within thinking',
      {},
      { reasoning: 'Well END', content: 'more' },
      { reasoning_content: 'Well ', content: '' },
      { kind: 'string', text: 'END' },
    ],
    ['that does not occur', {}, { content: 'One' }, { content: 'One' }, null],
    [
      'before a call',
      {},
      { content: 'One END', tool_calls: [{ id: 'a', type: 'function', function: { name: 'sh', arguments: '{}' } }] },
      { content: 'One ' },
      { kind: 'string', text: 'END' },
    ],
  ];
  it.each(stopped)('ends before a stop string %s', async (_, over, message, shown, stop) => {
    const reply = await generate(
      { responseIds: [11, 12, 13], message: { role: 'assistant', ...message }, generated: (r) => withChoice(r, over) },
      { stop: ['END', 'STOP'] },
    );
    expect(callsOf(server, GENERATE)[0]?.body).toMatchObject({ sampling_params: { stop: ['END', 'STOP'] } });
    expect(reply.message).toEqual({ role: 'assistant', ...shown });
    expect(reply.stop).toEqual(stop);
    expect([...reply.responseIds]).toEqual([11, 12, 13]);
  });

  it('ends before the stop string that was complete first', async () => {
    const message = { role: 'assistant', content: 'One END OF it' };
    const reply = await generate({ responseIds: [11, 12, 13], message }, { stop: ['END OF', 'ND'] });
    expect(reply).toMatchObject({ message: { content: 'One E' }, stop: { kind: 'string', text: 'ND' } });
  });

  const ended: [string, number[], object, number][] = [
    ['that the server names', [11, 99], { stop_reason: 99 }, 99],
    ['of a server that would name a string', [11, 99], { stop_reason: null }, 99],
    ['that closes turns', [11, 2], {}, 2],
  ];
  it.each(ended)('is complete when a token %s ended it, whatever its text', async (_, ids, over, id) => {
    const message = { role: 'assistant', content: 'The END of it' };
    const reply = await generate(
      { responseIds: ids, generated: (r) => withChoice(r, over), message },
      { stop: ['END'] },
    );
    expect(reply).toMatchObject({ message, stop: { kind: 'token', id } });
  });
});

describe('a forced call or response format', () => {
  it("is passed to the sampler in the server's own notation", async () => {
    const outputs = { structural_tag: '{"structures":[]}' };
    await generate(
      {
        rendered: (r) => ({
          ...r,
          sampling_params: { structured_outputs: outputs },
          reasoning_parser_kwargs: { chat_template_kwargs: {} },
        }),
      },
      { tools, toolsText, toolChoice: 'required' },
    );
    const render = callsOf(server, RENDER).at(-1);
    expect(render?.body).toMatchObject({
      tool_choice: 'required',
      tools: JSON.parse(toolsText) as unknown,
      max_tokens: 1,
    });
    expect(callsOf(server, GENERATE)[0]?.body).toMatchObject({
      sampling_params: { structured_outputs: outputs },
      reasoning_parser_kwargs: { chat_template_kwargs: {} },
    });
  });

  it('is unsupported when the server does not render it, and nothing is sampled', async () => {
    const responseFormat = { type: 'json_object' } as const;
    await expect(generate({}, { responseFormat })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(/the-engine.*response_format/),
    });
    expect(callsOf(server, GENERATE)).toEqual([]);
  });

  it('is not rendered when the request has none', async () => {
    await generate({}, { tools, toolsText, toolChoice: 'auto' });
    expect(callsOf(server, RENDER)).toEqual([]);
  });
});

describe('a resumed reply', () => {
  const resumeFrom = {
    responseIds: Int32Array.of(8, 9),
    responseLogprobs: Float32Array.of(-1, -2),
    versionSpans: [{ version: '1', start: 0, end: 2 }],
    routedExperts: null,
  };

  it('is sampled after its first part, and returned and parsed as one reply', async () => {
    const reply = await generate(
      { generated: (r) => withChoice(r, { weight_versions: [{ version: '2', start: 0, end: 3 }] }) },
      { resumeFrom, policyVersion: '2' },
    );
    expect(callsOf(server, GENERATE)[0]?.body).toMatchObject({
      token_ids: [1, 5, 6, 7, 8, 9],
      sampling_params: { max_tokens: 48 },
    });
    expect([...reply.promptIds]).toEqual([1, 5, 6, 7]);
    expect([...reply.responseIds]).toEqual([8, 9, 11, 12, 2]);
    expect([...reply.responseLogprobs]).toEqual([-1, -2, -0.25, -0.5, -0.75]);
    expect(reply.versionSpans).toEqual([
      { version: '1', start: 0, end: 2 },
      { version: '2', start: 2, end: 5 },
    ]);
    expect(reply.usage).toEqual({ prompt_tokens: 4, completion_tokens: 5, cached_tokens: 3 });
    expect(derenderedIds(callsOf(server, DERENDER)[0])).toEqual([8, 9, 11, 12]);
  });

  it('has one span when the version is the same', async () => {
    const reply = await generate(
      { generated: (r) => withChoice(r, { weight_versions: [{ version: '1', start: 0, end: 3 }] }) },
      { resumeFrom, policyVersion: '1' },
    );
    expect(reply.versionSpans).toEqual([{ version: '1', start: 0, end: 5 }]);
  });

  it('is complete when its first part has reached the bound', async () => {
    const reply = await generate({}, { resumeFrom, maxTokens: 2 });
    expect(callsOf(server, GENERATE)).toEqual([]);
    expect(reply).toMatchObject({ finishReason: 'length', stop: null, usage: { completion_tokens: 2 } });
    expect([...reply.responseIds]).toEqual([8, 9]);
    expect(reply.versionSpans).toEqual(resumeFrom.versionSpans);
    expect(engine?.info().capabilities.version_spans).toBe(false);
  });

  it('is rejected when only the prompt is echoed', async () => {
    await expect(
      generate({ generated: (r) => ({ ...r, prompt_token_ids: [1, 5, 6, 7] }) }, { resumeFrom }),
    ).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/prompt_token_ids are not the 6 ids that were sent, from index 4 on/),
    });
  });

  it('keeps all tokens when it is interrupted once more', async () => {
    const reply = await generate({ generated: (r) => withChoice(r, { finish_reason: 'abort' }) }, { resumeFrom });
    expect(reply).toMatchObject({ finishReason: 'abort', stop: null });
    expect([...reply.responseIds]).toEqual([8, 9, 11, 12, 2]);
  });
});

const entry = (logprob: unknown, id = 11) => ({ token_id: id, logprob });
const entries = (...logprobs: unknown[]) => ({
  logprobs: { content: logprobs.map((logprob, i) => entry(logprob, [11, 12, 2][i])) },
});

describe('an invalid reply', () => {
  type Lie = (reply: Json) => unknown;
  const faultyReplies: [string, Lie, RegExp][] = [
    ['no response ids', (r) => withChoice(r, { token_ids: null }), /token_ids is missing/],
    ['response ids that are not token ids', (r) => withChoice(r, { token_ids: [11, 1.5, 2] }), /token_ids/],
    [
      'response ids that do not match the usage',
      (r) => withChoice(r, { token_ids: [11, 12] }),
      /token_ids has 2 ids, but usage.completion_tokens is 3/,
    ],
    ['no logprobs', (r) => withChoice(r, { logprobs: null }), /logprobs\.content is missing/],
    ['one logprob too few', (r) => withChoice(r, entries(-1, -1)), /logprobs\.content has 2 entries for 3/],
    [
      'off-by-one logprobs',
      (r) => withChoice(r, { logprobs: { content: [entry(-1, 12), entry(-1, 2), entry(-1, 11)] } }),
      /logprobs\.content\.0 is of token_id:12, but token_ids\.0 is 11/,
    ],
    [
      'off-by-one logprobs of an older server',
      (r) =>
        withChoice(r, { logprobs: { content: [12, 2, 11].map((id) => ({ token: `token_id:${id}`, logprob: -1 })) } }),
      /logprobs\.content\.0 is of token_id:12/,
    ],
    ['a logprob of null', (r) => withChoice(r, entries(-1, null, -1)), /logprobs\.content\.1\.logprob is not a finite/],
    ['a logprob above 0', (r) => withChoice(r, entries(-1, -1, 0.5)), /logprobs\.content\.2\.logprob is 0\.5, above 0/],
    [
      'another prompt',
      (r) => ({ ...r, prompt_token_ids: [1, 5, 99, 7] }),
      /prompt_token_ids are not the 4 .* from index 2/,
    ],
    [
      'a shorter prompt',
      (r) => ({ ...r, prompt_token_ids: [1, 5, 6] }),
      /prompt_token_ids are not the 4 .* from index 3/,
    ],
    [
      'a longer prompt',
      (r) => ({ ...r, prompt_token_ids: [1, 5, 6, 7, 8] }),
      /prompt_token_ids are not the 4 .* from index 4/,
    ],
    ['a prompt of no ids', (r) => ({ ...r, prompt_token_ids: [1, -5, 6, 7] }), /prompt_token_ids/],
    ['a prompt that is one number', (r) => ({ ...r, prompt_token_ids: -1 }), /prompt_token_ids is not an array of ids/],
    [
      'another number of prompt ids',
      (r) => ({ ...r, prompt_token_ids: null, usage: { prompt_tokens: 9, completion_tokens: 3 } }),
      /prompt_token_ids has 4 ids, but usage.prompt_tokens is 9/,
    ],
    [
      "another call's id",
      (r) => ({ ...r, request_id: 'generate-tokens-cpl_other' }),
      /answers generate-tokens-cpl_other/,
    ],
    ['another model', (r) => ({ ...r, model: 'toy-2' }), /model is "toy-2", at registration it was toy/],
    [
      'an error with status 200',
      () => ({ error: { message: 'out of memory' } }),
      /200 with an error inside: out of memory/,
    ],
    ['an unrelated body', () => 'hello', /body/],
    ['two choices', (r) => ({ ...r, choices: [...(r.choices as []), ...(r.choices as [])] }), /choices/],
    ['no choice', (r) => ({ ...r, choices: [] }), /choices/],
    ['an unknown finish', (r) => withChoice(r, { finish_reason: 'error' }), /finish_reason is "error"/],
    ['no finish', (r) => withChoice(r, { finish_reason: null }), /finish_reason/],
    [
      'a gap between version spans',
      (r) => withChoice(r, { weight_versions: [{ version: '1', start: 1, end: 3 }] }),
      /weight_versions\.0/,
    ],
    [
      'experts of fewer tokens',
      (r) => withChoice(r, { routed_experts: { data: 'AAAA', shape: [3, 1, 1], dtype: 'uint8' } }),
      /routed_experts has 3 rows from position 0 on, not 6/,
    ],
    [
      'no sampled token',
      (r) =>
        withChoice(
          { ...r, usage: { prompt_tokens: 4, completion_tokens: 0 } },
          { token_ids: [], logprobs: { content: [] } },
        ),
      /no token was sampled/,
    ],
  ];
  it.each(faultyReplies)(
    'is rejected with an error that names the engine and the field: %s',
    async (_, corrupt, message) => {
      const failure = await generate({ generated: corrupt }).catch((error: unknown) => error);
      expect(failure).toMatchObject({ code: 'engine_error', details: { engine_id: 'the-engine' } });
      expect((failure as Error).message).toMatch(message);
      expect((failure as Error).message).toMatch(/^engine the-engine: /);
      expect(engine?.info()).toMatchObject({ healthy: false, inflight: 0, capabilities: { token_input: 'generate' } });
    },
  );

  it('is rejected when a logprob is NaN, which is not JSON', async () => {
    await connect();
    server.routes[GENERATE] = ({ response }) => {
      response.end('{"choices":[{"logprobs":{"content":[{"logprob":NaN}]}}]}');
    };
    await expect(engine?.generate(tokenRequest(), never())).rejects.toMatchObject({
      code: 'engine_error',
      message: "engine the-engine: the engine's reply cannot be recorded: it is not JSON",
    });
  });

  it('is rejected when it is truncated', async () => {
    await connect();
    server.routes[GENERATE] = ({ response }) => {
      response.writeHead(200, { 'content-length': 1000 });
      response.write('{"request_id":', () => response.destroy());
    };
    await expect(engine?.generate(tokenRequest(), never())).rejects.toMatchObject({
      code: 'engine_error',
      details: { engine_id: 'the-engine' },
    });
  });

  const derendered: [string, Lie, RegExp][] = [
    [
      'a message of other ids',
      (r) => ({ ...r, usage: { completion_tokens: 7 } }),
      /derendered message is of 7 ids, not of the 2/,
    ],
    ["another call's message", (r) => ({ ...r, id: 'cpl_other' }), /answers cpl_other/],
    ["another model's message", (r) => ({ ...r, model: 'toy-2' }), /model is "toy-2"/],
    ['no message', (r) => ({ ...r, choices: [{ index: 0 }] }), /choices\.0\.message/],
    [
      'a call without a name',
      (r) => withChoice(r, { message: { tool_calls: [{ id: 'a', function: { arguments: '' } }] } }),
      /name/,
    ],
    ['an error with status 200', () => ({ error: { message: 'no parser' } }), /error inside: no parser/],
  ];
  it.each(derendered)('is rejected when the parsers return %s', async (_, corrupt, message) => {
    await connect();
    serveTokens(server, { derendered: corrupt });
    const reason = new RegExp(`^engine the-engine: the engine's reply cannot be recorded: .*${message.source}`);
    await expect(engine?.generate(tokenRequest(), never())).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(reason),
      details: { engine_id: 'the-engine' },
    });
  });

  it('is rejected when it does not show its prompt, and the engine is sent no ids afterwards', async () => {
    const silent = ({ prompt_token_ids: _, usage: __, ...reply }: Json): unknown => reply;
    await expect(generate({ generated: silent })).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/neither prompt_token_ids nor usage/),
    });
    expect(engine?.info().capabilities.token_input).toBe('none');
    expect(notices).toEqual([
      [expect.stringMatching(/does not show its prompt/), expect.objectContaining({ engine_id: 'the-engine' })],
    ]);
  });

  it('a reply has no version when the version changes during the call', async () => {
    server.version = '7';
    await connect();
    const versions = async () => (await generateAsPool(engine as Engine, tokenRequest(), never())).versionSpans;
    expect(await versions()).toEqual([{ version: '7', start: 0, end: 3 }]);
    serveTokens(server, {
      generated: (reply) => {
        server.version = '8';
        return reply;
      },
    });
    expect(await versions()).toEqual([{ version: null, start: 0, end: 3 }]);
  });
});
