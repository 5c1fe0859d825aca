import { VirtualClock } from '@floe-rl/core';
import { type ChatTool, engineSpecSchema } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateReply, GenerateRequest, SampledTokens } from '../../../src/engines/engine.ts';
import { createSglangEngine } from '../../../src/engines/sglang/engine.ts';
import { generateAsPool } from '../pool-call.ts';
import { askRequest, prompted, promptIdsOf, type Script, SglangScript } from './scripted-sglang.ts';

const never = new AbortController().signal;
let server: SglangScript;
let engine: Engine;

async function start(script: Partial<Script> = {}, spec: object = {}): Promise<void> {
  server = new SglangScript(script);
  await server.http.listen();
  engine = await createSglangEngine(
    engineSpecSchema.parse({ kind: 'sglang', base_url: server.http.baseUrl, ...spec }),
    { clock: new VirtualClock() },
  );
}

afterEach(async () => {
  await engine?.close();
  await server?.http.close();
});

const PROMPT = [7, 8, 9, 10];
const tools: ChatTool[] = [{ type: 'function', function: { name: 'sh' } }];
const withTools = { tools, toolsText: JSON.stringify(tools) };

const generate = (over: Partial<GenerateRequest> = {}): Promise<GenerateReply> =>
  generateAsPool(engine, askRequest({ prompt: prompted(PROMPT), ...over }), never);

function resumeFrom(ids: number[]): SampledTokens {
  return {
    responseIds: Int32Array.from(ids),
    responseLogprobs: Float32Array.from(ids, () => -1),
    versionSpans: [{ version: 'old', start: 0, end: ids.length }],
    routedExperts: null,
  };
}

/**
 * The two ways to send a prompt of token ids: in the field `input_ids` of a chat completion, or to `/generate`. Each entry lists the name
 * of the way, the endpoint, and the settings of the server under which the adapter chooses it.
 */
const WAYS = [
  ['input_ids', '/v1/chat/completions', {}],
  ['generate', '/generate', { inputIds: false }],
] as const;

describe.each(WAYS)('a prompt of ids by %s', (way, path, script) => {
  it('is sent unchanged, and its reply is returned', async () => {
    await start(script);
    expect(engine.info().capabilities.token_input).toBe(way);
    const reply = await generate();
    const [call] = server.calls(path);
    expect(call?.text).toContain('"input_ids":[7,8,9,10]');
    expect(call?.text).not.toContain('\\u00e9');
    expect([...reply.promptIds]).toEqual(PROMPT);
    expect([...reply.responseIds]).toEqual([11, 12, 2]);
    expect([...reply.responseLogprobs]).toEqual([-0.25, -0.5, -0.75]);
    expect(reply).toMatchObject({ finishReason: 'stop', stop: { kind: 'token', id: 2 } });
    expect(reply.message).toEqual({ role: 'assistant', content: 'Hello.' });
  });

  it('is rejected when the server used another one', async () => {
    await start(script);
    const used = async (ids: string, message: RegExp): Promise<void> => {
      server.script.spoil = (reply) =>
        JSON.parse(JSON.stringify(reply).replace('"prompt_token_ids":[7,8,9,10]', `"prompt_token_ids":${ids}`));
      const refused = { code: 'engine_error', message: expect.stringMatching(message) };
      await expect(generate()).rejects.toMatchObject(refused);
    };
    await used('[7,8,8,10]', /other ids than those sent: 8 for 9 at 2/);
    await used('[6,8,9,10]', /other ids than those sent: 6 for 7 at 0/);
  });

  it('is rejected together with images, which it would leave out', async () => {
    await start(script);
    const image = '{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}';
    await expect(generate({ messageTexts: [image] })).rejects.toMatchObject({ code: 'unsupported' });
    const quoted = JSON.stringify({ role: 'user', content: '{"image_url":1}' });
    expect(await generate({ messageTexts: [quoted] })).toMatchObject({ finishReason: 'stop' });
  });

  it('is sent together with the first part of a resumed reply, and both parts are returned as one reply', async () => {
    await start({ ...script, modelInfo: { weight_version: 'new' } });
    server.script.ids = [12, 2];
    const reply = await generate({ resumeFrom: resumeFrom([21, 22]), maxTokens: 10, ...withTools });
    const [call] = server.calls(path);
    expect(call?.text).toContain('"input_ids":[7,8,9,10,21,22]');
    const params = (call?.body.sampling_params ?? call?.body) as Record<string, unknown>;
    expect(params.max_new_tokens ?? params.max_tokens).toBe(8);
    expect([...reply.promptIds]).toEqual(PROMPT);
    expect([...reply.responseIds]).toEqual([21, 22, 12, 2]);
    expect([...reply.responseLogprobs]).toEqual([-1, -1, -0.25, -0.5]);
    expect(reply.versionSpans).toEqual([
      { version: 'old', start: 0, end: 2 },
      { version: 'new', start: 2, end: 4 },
    ]);
    expect(reply.usage).toEqual({ prompt_tokens: 4, completion_tokens: 4, cached_tokens: 0 });
    // The token id 2 closes the turn and is not part of the message's text.
    expect(reply.message.content).toBe('<21><22><12>');
  });

  it('is not sent when the first part has reached the bound', async () => {
    await start(script);
    const reply = await generate({ resumeFrom: resumeFrom([21, 22]), maxTokens: 2 });
    expect(server.calls(path)).toEqual([]);
    expect(reply).toMatchObject({ finishReason: 'length', stop: null, message: { content: '<21><22>' } });
    expect([...reply.responseIds]).toEqual([21, 22]);
  });

  it('loses no token when the resumed reply is aborted before its first token', async () => {
    await start(script);
    Object.assign(server.script, { ids: [], finish: { type: 'abort' } });
    await expect(generate({ resumeFrom: resumeFrom([21]) })).rejects.toMatchObject({ code: 'engine_unavailable' });
  });
});

describe('sampling by /generate', () => {
  const native = { inputIds: false };

  it('sends every sampling parameter, and keeps special tokens', async () => {
    await start(native);
    await generate({ stop: ['END'], policyVersion: 'v7', responseFormat: { type: 'json_object' }, maxTokens: null });
    const [call] = server.calls('/generate');
    expect(call?.body).toMatchObject({
      rid: 'cpl_mine',
      return_logprob: true,
      logprob_start_len: -1,
      return_prompt_token_ids: true,
      extra_key: 'v7',
      sampling_params: {
        temperature: 0.7,
        top_p: 1,
        top_k: -1,
        min_p: 0,
        repetition_penalty: 1,
        max_new_tokens: 4096 - PROMPT.length - 1,
        stop: ['END'],
        sampling_seed: 9,
        json_schema: '{"type":"object"}',
        skip_special_tokens: false,
      },
    });
  });

  it("turns a response format with a schema into the server's own notation", async () => {
    await start(native);
    const schema = { type: 'object', required: ['city'] };
    await generate({ responseFormat: { type: 'json_schema', json_schema: { name: 'place', schema } } });
    const params = server.calls('/generate')[0]?.body.sampling_params;
    expect(params).toMatchObject({ json_schema: JSON.stringify(schema) });
  });

  it('leaves seeds out when the server fails on them', async () => {
    await start({ ...native, seeds: false });
    await generate();
    expect(server.calls('/generate')[0]?.body.sampling_params).not.toHaveProperty('sampling_seed');
    expect(engine.info().capabilities.notes).toContain('/generate does not support seeds');
  });

  it('checks the number of prompt ids when the server does not repeat them', async () => {
    await start({ ...native, echo: false });
    expect([...(await generate()).promptIds]).toEqual(PROMPT);
    server.script.meta = { prompt_tokens: 5 };
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', message: expect.stringMatching(/4 ids/) });
  });

  it("parses by the server's parsers: thinking first, then calls with unchanged arguments", async () => {
    await start({ ...native, text: '<think>[[no {}]]</think>Now.[[sh {"b": 1,  "a":2}]]' });
    const reply = await generate(withTools);
    expect(reply.finishReason).toBe('tool_calls');
    expect(reply.message).toEqual({
      role: 'assistant',
      content: 'Now.',
      reasoning_content: '[[no {}]]',
      tool_calls: [
        { id: 'call_cpl_mine_0', type: 'function', function: { name: 'sh', arguments: '{"b": 1,  "a":2}' } },
      ],
    });
    const parsed = server.http.received.filter((received) => received.path === '/parse_function_call').at(-1);
    expect(parsed?.body).toMatchObject({ tool_call_parser: 'qwen25', tools });
    expect((await generate({ ...withTools, toolChoice: 'none' })).message.content).toContain('[[sh');
    expect((await generate()).message.content).toContain('[[sh');
  });

  it('continues the call ids of the conversation for a model that counts calls', async () => {
    await start({ ...native, text: '[[sh {}]][[sh {}]]' }, { tool_parser: 'kimi_k2' });
    const earlier = JSON.stringify({ role: 'assistant', content: null, tool_calls: [{ id: 'functions.sh:0' }] });
    const { message } = await generate({ ...withTools, messageTexts: ['{"role":"user","content":"a"}', earlier] });
    expect(message.tool_calls?.map(({ id }) => id)).toEqual(['functions.sh:1', 'functions.sh:2']);
  });

  it('keeps thinking as text when the parser of thinking fails, and still parses the calls', async () => {
    await start({ ...native, text: '<think>hm</think>Now.[[sh {}]]' });
    server.http.routes['/separate_reasoning'] = ({ response }) => {
      response.writeHead(500).end('Internal Server Error');
    };
    expect((await generate(withTools)).message).toEqual({
      role: 'assistant',
      content: '<think>hm</think>Now.',
      tool_calls: [{ id: 'call_cpl_mine_0', type: 'function', function: { name: 'sh', arguments: '{}' } }],
    });
  });

  it('keeps text on which a parser fails, as in chat completions', async () => {
    await start({ ...native, text: 'a [[sh {' });
    server.http.routes['/parse_function_call'] = ({ response }) => {
      response.writeHead(500).end('Internal Server Error');
    };
    expect((await generate(withTools)).message).toEqual({ role: 'assistant', content: 'a [[sh {' });
    server.http.routes['/parse_function_call'] = ({ response }) => {
      response.writeHead(503).end();
    };
    await expect(generate(withTools)).rejects.toMatchObject({ code: 'engine_unavailable' });
  });

  it('rejects a request that forces a tool call, because the server would not enforce it', async () => {
    await start(native);
    await expect(generate({ ...withTools, toolChoice: 'required' })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(/tool_choice/),
    });
  });

  it('names what is wrong with a rejected reply', async () => {
    await start(native);
    const spoilt = async (meta: object, message: RegExp, top: object = {}): Promise<void> => {
      server.script.spoil = (reply) => ({ ...reply, ...top, meta_info: { ...(reply.meta_info as object), ...meta } });
      const refused = { code: 'engine_error', message: expect.stringMatching(message) };
      await expect(generate()).rejects.toMatchObject(refused);
    };
    await spoilt({ output_token_logprobs: null }, /output_token_logprobs is missing/);
    await spoilt({ output_token_logprobs: [[-1, 11, null]] }, /1 entries for 3 token_ids/);
    await spoilt({}, /logprobs\.1 is of token_id:12/, { output_ids: [11, 13, 2] });
    await spoilt({ completion_tokens: 4 }, /token_ids has 3 ids/);
    await spoilt({ prompt_tokens: 3 }, /prompt_token_ids has 4 ids/);
    await spoilt({ finish_reason: null }, /finish_reason is missing/);
    await spoilt({ id: 'cpl_other' }, /answers cpl_other/);
    await spoilt({ weight_versions: [{ version: '1', start: 1, end: 3 }] }, /weight_versions\.0/);
  });

  it('detects that the server has changed its model', async () => {
    await start(native);
    server.http.models = [{ id: 'other' }, ...server.http.models.slice(1)];
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', message: expect.stringMatching(/"other"/) });
  });
});

describe('a server with missing features', () => {
  it('accepts no prompts of ids when it renders no messages', async () => {
    await start({ chatTokenize: false });
    const { capabilities } = engine.info();
    expect(capabilities).toMatchObject({ token_ids: true, token_input: 'none', template: { close_ids: [] } });
    await expect(generate()).rejects.toMatchObject({ code: 'unsupported' });
    await expect(engine.countTokens(askRequest(), never)).rejects.toMatchObject({ code: 'unsupported' });
    const { messageTexts, toolsText, completionId, sessionId, pool } = askRequest();
    const sentCall = { messageTexts, toolsText, completionId, sessionId, pool, generationPrompt: true };
    await expect(engine.render(sentCall, never)).rejects.toMatchObject({ code: 'unsupported' });
    expect(await generate({ prompt: null })).toMatchObject({ finishReason: 'stop' });
  });

  it('does not use /generate or resume replies when it cannot parse text', async () => {
    await start({ parsers: false });
    expect(engine.info().capabilities.token_input).toBe('input_ids');
    expect(await generate()).toMatchObject({ finishReason: 'stop' });
    await expect(generate({ resumeFrom: resumeFrom([21]) })).rejects.toMatchObject({ code: 'unsupported' });
    await engine.close();
    await server.http.close();
    await start({ parsers: false, inputIds: false });
    expect(engine.info().capabilities.token_input).toBe('none');
  });

  it('does not use /generate when it has no parser of thinking and its parser of tool calls fails', async () => {
    await start({ parsers: false, inputIds: false, serverInfo: { version: '0.5.15', tool_call_parser: 'qwen25' } });
    expect(engine.info().capabilities.token_input).toBe('none');
  });

  it('is refused at registration when it reports no ids', async () => {
    const refused = { code: 'engine_error', message: expect.stringMatching(/report no token ids/) };
    const silent = new SglangScript();
    silent.chatReply = () => ({ id: 'x', model: 'toy', choices: [{ message: {}, finish_reason: 'stop' }], usage: {} });
    await silent.http.listen();
    const spec = engineSpecSchema.parse({ kind: 'sglang', base_url: silent.http.baseUrl });
    await expect(createSglangEngine(spec, { clock: new VirtualClock() })).rejects.toMatchObject(refused);
    await silent.http.close();
  });

  it('is reported as another server, another model or unavailable', async () => {
    const clock = new VirtualClock();
    const other = new SglangScript();
    await other.http.listen();
    const { baseUrl } = other.http;
    const connect = (over: object) =>
      createSglangEngine(engineSpecSchema.parse({ kind: 'sglang', base_url: baseUrl, ...over }), { clock });
    await expect(connect({ model: 'gpt' })).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/gpt/),
    });
    delete other.http.routes['GET /model_info'];
    await expect(connect({})).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/not an SGLang server/),
    });
    await other.http.close();
    await expect(connect({})).rejects.toMatchObject({ code: 'engine_unavailable' });
  });
});

describe('rendering', () => {
  const messages = [
    { role: 'user', content: 'hi' },
    { role: 'assistant', content: 'yes' },
  ];
  const sentCall = {
    messageTexts: messages.map((message) => JSON.stringify(message)),
    toolsText: '[]',
    completionId: 'cpl_1',
    sessionId: 'ses_1',
    pool: 'default',
  };

  it('ends with or without the generation prompt, although the server always adds it', async () => {
    await start();
    const open = await engine.render({ ...sentCall, generationPrompt: true }, never);
    const closed = await engine.render({ ...sentCall, generationPrompt: false }, never);
    expect([...open]).toEqual(promptIdsOf(messages));
    expect([...open]).toEqual([...closed, 1, 103]);
    expect(engine.info().capabilities.template.close_ids).toEqual([2]);
    expect(await engine.countTokens(askRequest({ messageTexts: sentCall.messageTexts }), never)).toBe(open.length);
  });

  it('counts and renders with the generation prompt as the request says when the server supports that', async () => {
    await start({ promptField: true });
    const open = await engine.render({ ...sentCall, generationPrompt: true }, never);
    const closed = await engine.render({ ...sentCall, generationPrompt: false }, never);
    expect([...open]).toEqual(promptIdsOf(messages));
    expect([...open]).toEqual([...closed, 1, 103]);
    expect(server.http.received.at(-1)?.body).toMatchObject({ add_generation_prompt: false });
    expect(await engine.countTokens(askRequest({ messageTexts: sentCall.messageTexts }), never)).toBe(open.length);
  });

  it('rejects images', async () => {
    await start();
    const image = '{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}';
    await expect(
      engine.render({ ...sentCall, messageTexts: [image], generationPrompt: true }, never),
    ).rejects.toMatchObject({ code: 'unsupported', details: { images: true } });
  });

  it('converts ids to text with special tokens', async () => {
    await start();
    expect(await engine.detokenize(Int32Array.from([1, 2]), never)).toBe('<1><2>');
    expect(server.http.received.at(-1)?.body).toMatchObject({ tokens: [1, 2], skip_special_tokens: false });
  });
});
