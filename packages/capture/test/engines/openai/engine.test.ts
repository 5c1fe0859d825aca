import { systemClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateRequest } from '../../../src/engines/engine.ts';
import { createOpenaiEngine } from '../../../src/engines/openai/engine.ts';
import type { ReplyDelta } from '../../../src/reply.ts';
import { contractRequest, promptOf } from '../contract.ts';
import { json, type Received, ScriptedServer, sendStream } from '../scripted-server.ts';

const never = new AbortController().signal;
const tool = { type: 'function' as const, function: { name: 'look' } };
const withTools = { tools: [tool], toolsText: '[{"type":"function", "function":{"name":"look"}}]' };
const usage = { prompt_tokens: 7, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 2 } };

let server: ScriptedServer;
let engine: Engine | null = null;

const whole = (message: object, over: object = {}) => ({
  id: 'chatcmpl-1',
  model: 'toy-2026-01-01',
  choices: [{ index: 0, message: { role: 'assistant', ...message }, finish_reason: 'stop' }],
  usage,
  ...over,
});
const choice = (fields: object) => ({ choices: [{ index: 0, delta: {}, finish_reason: null, ...fields }] });
const refuse = (received: Received, status: number, error: object, headers = {}) =>
  json(received.response, status, { error }, headers);

async function connect(over: object = {}): Promise<Engine> {
  const spec = engineSpecSchema.parse({ kind: 'openai', base_url: server.baseUrl, token_ids: 'off', ...over });
  engine = await createOpenaiEngine(spec, { clock: systemClock });
  return engine;
}

const generate = async (over: Partial<GenerateRequest> = {}) =>
  (engine ?? (await connect())).generate(contractRequest('plain', over), never);

beforeEach(async () => {
  server = new ScriptedServer(({ response }) => json(response, 200, whole({ content: 'Hello.' })));
  await server.listen();
});

afterEach(async () => {
  await engine?.close();
  engine = null;
  await server.close();
});

describe('connecting', () => {
  it('reports that there are no tokens, and not the key', async () => {
    const info = (await connect({ api_key: 'secret' })).info();
    expect(info).toMatchObject({
      kind: 'openai',
      model: 'toy',
      logprobs_mode: null,
      capabilities: {
        token_ids: false,
        token_input: 'none',
        notes: [
          'no token ids, so that its replies are not trained on: they are not requested, because token_ids is off',
        ],
        template: { close_ids: [] },
      },
    });
    expect(JSON.stringify(info)).not.toContain('secret');
    expect(server.received[0]?.headers.authorization).toBe('Bearer secret');
  });

  it.each([
    ['auto', true],
    ['off', false],
  ])('reports whether replies are streamed when the setting is %s', async (stream, streaming) => {
    expect((await connect({ stream })).info().streaming).toBe(streaming);
  });

  it('requires a model name for an API without a model list', async () => {
    server.routes['GET /v1/models'] = ({ response }) => json(response, 404, { error: { message: 'Not found' } });
    await expect(connect()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('name the one to use'),
    });
    expect((await connect({ model: 'mine' })).info()).toMatchObject({ model: 'mine', max_model_len: null });
  });

  it('uses and notes a model that is not listed, since lists of hosted APIs are incomplete', async () => {
    const { model, capabilities } = (await connect({ model: 'deployment-7' })).info();
    expect(model).toBe('deployment-7');
    expect(capabilities.notes).toContain('/v1/models does not list deployment-7');
  });

  it.each([
    [401, 'engine_error'],
    [429, 'engine_unavailable'],
    [500, 'engine_error'],
    [503, 'engine_unavailable'],
  ])('rejects a model list with status %i as %s', async (status, code) => {
    server.routes['GET /v1/models'] = (received) => refuse(received, status, { message: 'no' });
    await expect(connect({ model: 'toy' })).rejects.toMatchObject({ code });
  });
});

describe('requests', () => {
  it("have only OpenAI's fields, with explicit sampling", async () => {
    await generate({
      ...withTools,
      sampling: samplingSchema.parse({ temperature: 0.5, top_p: 0.9, top_k: 4, min_p: 0.1, repetition_penalty: 1.2 }),
      toolChoice: 'required',
      parallelToolCalls: false,
      stop: ['END'],
      responseFormat: { type: 'json_object' },
      maxTokens: 20,
    });
    const [sentCall] = server.chats;
    expect(sentCall?.text).toContain('"tools":[{"type":"function", "function":{"name":"look"}}]');
    expect(Object.keys(sentCall?.body ?? {}).sort()).toEqual(
      [
        ...['max_tokens', 'messages', 'model', 'parallel_tool_calls', 'response_format', 'seed', 'stop', 'stream'],
        ...['temperature', 'tool_choice', 'tools', 'top_p'],
      ].sort(),
    );
    expect(sentCall?.body).toMatchObject({ temperature: 0.5, top_p: 0.9, max_tokens: 20, stream: false });
    const { notes } = (engine as Engine).info().capabilities;
    for (const field of ['top_k', 'min_p', 'repetition_penalty']) {
      expect(notes).toContain(`the API has no field for ${field}; it is not sent`);
    }
  });

  it('leave out no sampling parameter that has its neutral value', async () => {
    await generate({ sampling: samplingSchema.parse({ top_k: 0, min_p: 0, repetition_penalty: 1 }) });
    expect((engine as Engine).info().capabilities.notes.join()).not.toContain('the API has no field');
  });

  it('leave out thinking of earlier turns, but not text that resembles it', async () => {
    const messageTexts = [
      '{"role":"user","content":"say \\"reasoning_content\\": 1"}',
      '{"role":"assistant","content":"a","reasoning_content":"hm"}',
    ];
    await generate({ messageTexts });
    expect(server.chats[0]?.body.messages).toEqual([
      { role: 'user', content: 'say "reasoning_content": 1' },
      { role: 'assistant', content: 'a' },
    ]);
    expect(server.chats[0]?.text).toContain(messageTexts[0]);
  });

  const unsupported = (param: string) => ({
    message: 'no',
    type: 'invalid_request_error',
    param,
    code: 'unsupported_parameter',
  });

  it('use the new name of max_tokens after it was refused', async () => {
    server.onChat = (received) => {
      if ('max_tokens' in received.body) refuse(received, 400, unsupported('max_tokens'));
      else json(received.response, 200, whole({ content: 'ok' }));
    };
    await generate({ maxTokens: 20 });
    await generate({ maxTokens: 30 });
    expect(server.chats.map(({ body }) => [body.max_tokens, body.max_completion_tokens])).toEqual([
      [20, undefined],
      [undefined, 20],
      [undefined, 30],
    ]);
  });

  it('leave out an unknown field if it is dispensable, and are rejected otherwise', async () => {
    server.onChat = (received) => {
      if ('temperature' in received.body) refuse(received, 400, unsupported('temperature'));
      else json(received.response, 200, whole({ content: 'ok' }));
    };
    await generate();
    expect(server.chats).toHaveLength(2);
    const sampling = samplingSchema.parse({ temperature: 0.5 });
    await expect(generate({ sampling })).rejects.toMatchObject({ code: 'engine_rejected' });
    expect(server.chats).toHaveLength(3);
  });

  it('are rejected with a prompt of ids', async () => {
    await expect(generate({ prompt: promptOf(Int32Array.of(1)) })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(/: the API accepts no token ids$/),
    });
    expect(server.chats).toHaveLength(0);
  });
});

describe('replies', () => {
  it('have text and usage, and no token ids', async () => {
    const reply = await generate();
    expect(reply).toMatchObject({
      message: { role: 'assistant', content: 'Hello.' },
      finishReason: 'stop',
      stop: null,
      logprobsMode: null,
      versionSpans: [],
      routedExperts: null,
      usage: { prompt_tokens: 7, completion_tokens: 3, cached_tokens: 2 },
    });
    expect([reply.promptIds.length, reply.responseIds.length, reply.responseLogprobs.length]).toEqual([0, 0, 0]);
  });

  it.each(['reasoning', 'reasoning_content'])('have thinking from the field %s', async (field) => {
    server.onChat = ({ response }) => json(response, 200, whole({ content: 'Yes.', [field]: 'hm' }));
    expect((await generate()).message).toEqual({ role: 'assistant', content: 'Yes.', reasoning_content: 'hm' });
  });

  it('have calls with any finish reason', async () => {
    const tool_calls = [{ id: 'call_1', type: 'function', function: { name: 'look', arguments: '{"b":1, "a":2}' } }];
    server.onChat = ({ response }) => json(response, 200, whole({ content: null, tool_calls }));
    const { message, finishReason } = await generate(withTools);
    expect(message).toEqual({ role: 'assistant', content: null, tool_calls });
    expect(finishReason).toBe('tool_calls');
  });

  it('have a refusal as text', async () => {
    server.onChat = ({ response }) => json(response, 200, whole({ content: null, refusal: 'I will not.' }));
    expect((await generate()).message.content).toBe('I will not.');
  });

  it.each([
    ['usage is missing', { usage: undefined }, 'engine_error'],
    ['finish_reason is "eos"', { choices: [{ message: { content: 'x' }, finish_reason: 'eos' }] }, 'engine_error'],
    ['content filter', { choices: [{ message: { content: '' }, finish_reason: 'content_filter' }] }, 'engine_rejected'],
    ['choices', { choices: [] }, 'engine_error'],
    [
      'choices.0.message.tool_calls.0.function.arguments',
      {
        choices: [
          { message: { tool_calls: [{ id: 'a', function: { name: 'f', arguments: {} } }] }, finish_reason: 'stop' },
        ],
      },
      'engine_error',
    ],
    ['status 200 with an error inside: quota', { error: { message: 'quota' } }, 'engine_error'],
  ])('are rejected when they are invalid, with an error that contains: %s', async (message, over, code) => {
    server.onChat = ({ response }) => json(response, 200, whole({ content: 'x' }, over));
    await expect(generate()).rejects.toMatchObject({ code, message: expect.stringContaining(message) });
  });

  it('are rejected with an engine error when they are not JSON', async () => {
    server.onChat = ({ response }) => void response.end('<html>');
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error' });
  });
});

describe('streams', () => {
  const listen = () => {
    const relayed: (ReplyDelta | { started: number | null })[] = [];
    return {
      relayed,
      listener: {
        started: (promptTokens: number | null) => void relayed.push({ started: promptTokens }),
        delta: (delta: ReplyDelta) => void relayed.push(delta),
      },
    };
  };
  const stream = (chunks: unknown[], end?: string) => {
    server.onChat = ({ response }) => sendStream(response, chunks, end);
  };
  const finish = choice({ finish_reason: 'stop' });
  const last = { choices: [], usage };

  it('relay deltas, which form the reply', async () => {
    stream([
      choice({ delta: { role: 'assistant', content: '' } }),
      choice({ delta: { reasoning: 'hm' } }),
      choice({ delta: { content: 'On ' } }),
      choice({ delta: { content: 'it.' } }),
      choice({ delta: { tool_calls: [{ index: 0, id: 'call_1', function: { name: 'look', arguments: '' } }] } }),
      choice({ delta: { tool_calls: [{ index: 0, function: { arguments: '{"a":' } }] } }),
      choice({ delta: { tool_calls: [{ index: 0, function: { arguments: '1}' } }] } }),
      choice({ finish_reason: 'tool_calls' }),
      last,
    ]);
    const { relayed, listener } = listen();
    const reply = await generate({ ...withTools, listener });
    expect(server.chats[0]?.body).toMatchObject({ stream: true, stream_options: { include_usage: true } });
    expect(reply).toMatchObject({ finishReason: 'tool_calls', usage: { prompt_tokens: 7, completion_tokens: 3 } });
    expect(reply.message).toEqual({
      role: 'assistant',
      content: 'On it.',
      reasoning_content: 'hm',
      tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'look', arguments: '{"a":1}' } }],
    });
    expect(relayed[0]).toHaveProperty('started');
    expect(relayed.filter((event) => 'started' in event)).toHaveLength(1);
    const texts = relayed.flatMap((event) => ('kind' in event && event.kind === 'text' ? [event.text] : []));
    expect(texts.join('')).toBe('On it.');
  });

  it('begin a call without index at a piece with an id', async () => {
    const piece = (fields: object) => choice({ delta: { tool_calls: [fields] } });
    stream([
      piece({ id: 'a', function: { name: 'look', arguments: '{}' } }),
      piece({ id: 'b', function: { name: 'look', arguments: '{"x":' } }),
      piece({ function: { arguments: '1}' } }),
      finish,
      last,
    ]);
    const { message } = await generate({ ...withTools, listener: listen().listener });
    expect(message.tool_calls?.map((call) => [call.id, call.function.arguments])).toEqual([
      ['a', '{}'],
      ['b', '{"x":1}'],
    ]);
  });

  it('may end without [DONE], and have comments', async () => {
    server.onChat = ({ response }) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const events = [choice({ delta: { content: 'a' } }), finish, last];
      response.end(`: still there\n\n${events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join('')}`);
    };
    expect((await generate({ listener: listen().listener })).message.content).toBe('a');
  });

  it('may be answered with one body', async () => {
    const { relayed, listener } = listen();
    expect((await generate({ listener })).message.content).toBe('Hello.');
    expect(relayed).toEqual([]);
  });

  it.each([
    ['the stream broke off', [choice({ delta: { content: 'a' } })], '', 'engine_error'],
    ['usage is missing', [choice({ delta: { content: 'a' } }), finish], '[DONE]', 'engine_error'],
    ['overloaded', [choice({ delta: { content: 'a' } }), { error: { message: 'overloaded' } }], '', 'engine_error'],
    [
      'tool_calls.0 has no id',
      [choice({ delta: { tool_calls: [{ index: 0 }] } }), finish, last],
      '[DONE]',
      'engine_error',
    ],
    ['arrives before the calls', [choice({ delta: { tool_calls: [{ index: 3, id: 'a' }] } })], '', 'engine_error'],
    [
      'arrives before the calls',
      [choice({ delta: { tool_calls: [{ function: { arguments: '1' } }] } })],
      '',
      'engine_error',
    ],
    ['content filter', [choice({ finish_reason: 'content_filter' }), last], '[DONE]', 'engine_rejected'],
    ['not JSON', ['{bad'], '', 'engine_error'],
  ])('are rejected when they are invalid, with an error that contains: %s', async (message, chunks, end, code) => {
    stream(chunks, end);
    await expect(generate({ listener: listen().listener })).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
    });
  });
});

describe('refusals', () => {
  it.each([
    [
      429,
      { message: 'Rate limit reached' },
      { 'retry-after': '3' },
      { code: 'engine_unavailable', details: { retry_after_ms: 3000 } },
    ],
    [503, { message: 'busy' }, {}, { code: 'engine_unavailable', details: { retry_after_ms: null } }],
    [
      400,
      { message: 'too long', code: 'context_length_exceeded', param: 'messages' },
      {},
      { code: 'engine_rejected', message: 'too long', details: { context_overflow: true } },
    ],
    [400, { message: 'bad schema', param: 'tools' }, {}, { code: 'engine_rejected', details: { param: 'tools' } }],
    [401, { message: 'no such key' }, {}, { code: 'engine_error' }],
    [402, { message: 'pay first' }, {}, { code: 'engine_error' }],
    [404, { message: 'no such model' }, {}, { code: 'engine_error' }],
    [502, { message: 'bad gateway' }, {}, { code: 'engine_error' }],
  ])('status %i is reported as an error with its code and details', async (status, error, headers, expected) => {
    server.onChat = (received) => refuse(received, status, error, headers);
    await expect(generate()).rejects.toMatchObject(expected);
    expect(server.chats).toHaveLength(1);
  });

  it('a missing endpoint is reported as unsupported', async () => {
    const api = await connect();
    const unsupported = { code: 'unsupported' };
    const request = contractRequest('plain');
    await expect(api.countTokens(request, never)).rejects.toMatchObject(unsupported);
    await expect(api.render({ ...request, generationPrompt: true }, never)).rejects.toMatchObject(unsupported);
    await expect(api.detokenize(Int32Array.of(1), never)).rejects.toMatchObject(unsupported);
    await expect(api.pause('keep', never)).rejects.toMatchObject(unsupported);
    expect(await api.metrics(never)).toBeNull();
  });

  it('an abort rejects with its reason and closes the connection', async () => {
    await connect();
    const controller = new AbortController();
    const closed = new Promise<void>((resolve) => {
      server.onChat = ({ response }) => {
        response.once('close', resolve);
        controller.abort(new Error('enough'));
      };
    });
    await expect(engine?.generate(contractRequest('plain'), controller.signal)).rejects.toThrow('enough');
    await closed;
    expect(engine?.info().inflight).toBe(0);
  });
});
