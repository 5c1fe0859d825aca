import { VirtualClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateRequest } from '../../../src/engines/engine.ts';
import { createVllmEngine } from '../../../src/engines/vllm/engine.ts';
import { generateAsPool } from '../pool-call.ts';
import { json, ScriptedServer, vllmReply } from '../scripted-server.ts';

const clock = new VirtualClock();
let server: ScriptedServer;
let engine: Engine | null = null;

function request(over: Partial<GenerateRequest> = {}): GenerateRequest {
  return {
    completionId: 'cpl_mine',
    sessionId: 'ses_1',
    pool: 'default',
    prompt: null,
    resumeFrom: null,
    policyVersion: null,
    messageTexts: ['{"role":"user","content":"hi  \\u00e9"}'],
    tools: [],
    toolsText: '[]',
    toolChoice: null,
    parallelToolCalls: null,
    responseFormat: null,
    sampling: samplingSchema.parse({ temperature: 0.7 }),
    maxTokens: 50,
    stop: [],
    seed: 9,
    ...over,
  };
}

async function connect(over: object = {}): Promise<Engine> {
  engine = await createVllmEngine(engineSpecSchema.parse({ base_url: server.baseUrl, ...over }), { clock });
  return engine;
}

const generate = async (over: Partial<GenerateRequest> = {}) =>
  generateAsPool(engine ?? (await connect()), request(over), new AbortController().signal);

beforeEach(async () => {
  server = new ScriptedServer((received) => json(received.response, 200, vllmReply(received)));
  await server.listen();
});

afterEach(async () => {
  await engine?.close();
  engine = null;
  await server.close();
});

describe('requests to vLLM', () => {
  it('send messages and tools unchanged, with explicit sampling and the fields for exact tokens', async () => {
    await generate({
      tools: [{ type: 'function', function: { name: 'f' } }],
      toolsText: '[{"type":"function", "function":{"name":"f"}}]',
      toolChoice: 'required',
      parallelToolCalls: false,
      stop: ['END'],
    });
    const [call] = server.chats;
    expect(call?.text).toContain('"messages":[{"role":"user","content":"hi  \\u00e9"}]');
    expect(call?.text).toContain('"tools":[{"type":"function", "function":{"name":"f"}}]');
    expect(call?.body).toMatchObject({
      model: 'toy',
      temperature: 0.7,
      top_p: 1,
      top_k: 0,
      min_p: 0,
      repetition_penalty: 1,
      max_tokens: 50,
      stop: ['END'],
      seed: 9,
      tool_choice: 'required',
      parallel_tool_calls: false,
      stream: false,
      logprobs: true,
      top_logprobs: 0,
      return_token_ids: true,
      include_reasoning: true,
    });
    expect(call?.headers['x-request-id']).toBe('cpl_mine');
    expect(call?.headers['x-session-id']).toBe('ses_1');
  });

  it('leave out a token limit above the context length, and one that the server refuses because of the prompt', async () => {
    await generate({ maxTokens: 32_000 });
    expect(server.chats[0]?.body).not.toHaveProperty('max_tokens');
    server.onChat = (received) => {
      if (!('max_tokens' in received.body)) return json(received.response, 200, vllmReply(received));
      const message = "This model's maximum context length is 4096 tokens. However, you requested 4500.";
      json(received.response, 400, { error: { message, type: 'BadRequestError', param: null, code: 400 } });
    };
    await expect(generate({ maxTokens: 4_000 })).resolves.toMatchObject({ finishReason: 'stop' });
    expect(server.chats.map(({ body }) => body.max_tokens)).toEqual([undefined, 4_000, undefined]);
  });

  it('count the tokens of the rendered conversation', async () => {
    const count = await (await connect()).countTokens(request(), new AbortController().signal);
    expect(count).toBe(7);
    const call = server.received.findLast(({ path }) => path === '/tokenize');
    expect(call?.body).toEqual({
      model: 'toy',
      messages: [{ role: 'user', content: 'hi  é' }],
      add_generation_prompt: true,
    });
  });
});

describe('a parsed reply', () => {
  it('has ids, log-probabilities, message, usage and the token that ended it', async () => {
    server.onChat = (received) =>
      json(
        received.response,
        200,
        vllmReply(received, {
          content: '',
          reasoning: 'hm',
          toolCalls: [{ id: 'call_1', name: 'sh', arguments: '{"b":1, "a": 2}' }],
        }),
      );
    const reply = await generate();
    expect([...reply.promptIds]).toEqual([1, 5, 6, 7]);
    expect([...reply.responseIds]).toEqual([11, 12, 2]);
    expect([...reply.responseLogprobs]).toEqual([-0.25, -0.5, -0.75]);
    expect(reply.message).toEqual({
      role: 'assistant',
      content: null,
      reasoning_content: 'hm',
      tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'sh', arguments: '{"b":1, "a": 2}' } }],
    });
    expect(reply.finishReason).toBe('tool_calls');
    expect(reply.stop).toEqual({ kind: 'token', id: 2 });
    expect(reply.usage).toEqual({ prompt_tokens: 4, completion_tokens: 3, cached_tokens: 2 });
    expect(reply.versionSpans).toEqual([{ version: null, start: 0, end: 3 }]);
  });

  it.each([-1, 5])(
    'has no cached tokens when their number is impossible: %i of a prompt of 4',
    async (cached_tokens) => {
      server.onChat = (received) => {
        const whole = vllmReply(received) as { usage: object };
        json(received.response, 200, { ...whole, usage: { ...whole.usage, prompt_tokens_details: { cached_tokens } } });
      };
      expect((await generate()).usage).toEqual({ prompt_tokens: 4, completion_tokens: 3, cached_tokens: null });
    },
  );

  it('may have ids with spaces, and on the choice', async () => {
    server.onChat = (received) => {
      const reply = vllmReply(received) as { choices: Record<string, unknown>[]; prompt_token_ids?: number[] };
      const [choice] = reply.choices;
      if (choice) choice.prompt_token_ids = reply.prompt_token_ids;
      delete reply.prompt_token_ids;
      const text = JSON.stringify(reply).replace(/"prompt_token_ids":\[([^\]]*)\]/, (_, ids: string) => {
        return `"prompt_token_ids": [ ${ids.split(',').join(' , ')} ]`;
      });
      received.response.writeHead(200).end(text);
    };
    expect([...(await generate()).promptIds]).toEqual([1, 5, 6, 7]);
  });

  it('ignores text that imitates the id field', async () => {
    const content = '"prompt_token_ids":[666] \\"prompt_token_ids\\":[667]';
    server.onChat = (received) => json(received.response, 200, vllmReply(received, { content }));
    const reply = await generate();
    expect(reply.message.content).toBe(content);
    expect([...reply.promptIds]).toEqual([1, 5, 6, 7]);
  });

  it.each([
    ['a stop string', { stopReason: 'END' }, { kind: 'string', text: 'END' }],
    ['a stop token', { stopReason: 99 }, { kind: 'token', id: 99 }],
    ['the length', { finish: 'length' }, null],
  ])('reports that %s ended the reply', async (_, parts, stop) => {
    server.onChat = (received) => json(received.response, 200, vllmReply(received, parts));
    expect((await generate()).stop).toEqual(stop);
  });

  it('has the version spans of the server unchanged', async () => {
    const spans = [
      { version: '4', start: 0, end: 1 },
      { version: '5', start: 1, end: 3 },
    ];
    server.onChat = (received) =>
      json(received.response, 200, withChoice(vllmReply(received), { weight_versions: spans }));
    expect((await generate({ policyVersion: '4' })).versionSpans).toEqual(spans);
  });

  it("has the server's version when there are no spans, and none when it changed during the call", async () => {
    server.version = '7';
    await connect();
    expect(engine?.info().policy_version).toBe('7');
    expect((await generate()).versionSpans).toEqual([{ version: '7', start: 0, end: 3 }]);
    server.onChat = (received) => {
      server.version = '8';
      clock.advance(1_000);
      json(received.response, 200, vllmReply(received));
    };
    expect((await generate()).versionSpans).toEqual([{ version: null, start: 0, end: 3 }]);
    clock.advance(1_000);
    expect((await generate()).versionSpans).toEqual([{ version: '8', start: 0, end: 3 }]);
    // The policy version changes during the call, shortly after it was read. The reply then has no version, because the versions before and
    // after the call differ.
    server.onChat = (received) => {
      server.version = '9';
      json(received.response, 200, vllmReply(received));
    };
    expect((await generate()).versionSpans).toEqual([{ version: null, start: 0, end: 3 }]);
    const together = await Promise.all([generate(), generate(), generate()]);
    expect(together.map((reply) => reply.versionSpans[0]?.version)).toEqual(['9', '9', '9']);
  });
});

function withChoice(reply: Record<string, unknown>, over: object): Record<string, unknown> {
  const [choice] = reply.choices as object[];
  return { ...reply, choices: [{ ...choice, ...over }] };
}

const entry = (logprob: unknown) => ({ token: 't', logprob, bytes: null, top_logprobs: [] });

describe('an invalid reply', () => {
  type Break = (reply: Record<string, unknown>) => unknown;
  const cases: [string, Break, RegExp][] = [
    ['no prompt ids', ({ prompt_token_ids: _, ...rest }) => rest, /prompt_token_ids is missing/],
    ['no response ids', (r) => withChoice(r, { token_ids: null }), /^(?!.*prompt).*token_ids is missing/],
    ['prompt ids that are not token ids', (r) => ({ ...r, prompt_token_ids: [1, -5, 6, 7] }), /prompt_token_ids/],
    ['prompt ids beyond int32', (r) => ({ ...r, prompt_token_ids: [1, 2 ** 31, 6, 7] }), /prompt_token_ids/],
    ['prompt ids as one number', (r) => ({ ...r, prompt_token_ids: -1 }), /prompt_token_ids is not an array/],
    ['response ids that are not token ids', (r) => withChoice(r, { token_ids: [11, 1.5, 2] }), /token_ids/],
    ['response ids that do not match the usage', (r) => withChoice(r, { token_ids: [11, 12] }), /token_ids has 2 .* 3/],
    ['prompt ids that do not match the usage', (r) => ({ ...r, prompt_token_ids: [1] }), /prompt_token_ids has 1 .* 4/],
    ['no usage', ({ usage: _, ...rest }) => rest, /usage/],
    ['no logprobs', (r) => withChoice(r, { logprobs: null }), /logprobs.content is missing/],
    ['one logprob too few', (r) => withChoice(r, { logprobs: { content: [entry(-1), entry(-1)] } }), /2 entries for 3/],
    [
      'logprobs shifted against the ids',
      (r) =>
        withChoice(r, { logprobs: { content: [12, 2, 11].map((id) => ({ ...entry(-1), token: `token_id:${id}` })) } }),
      /logprobs\.content\.0 is of token_id:12, but token_ids\.0 is 11/,
    ],
    [
      'a logprob of null',
      (r) => withChoice(r, { logprobs: { content: [entry(-1), entry(null), entry(-1)] } }),
      /content\.1/,
    ],
    [
      'a logprob above 0',
      (r) => withChoice(r, { logprobs: { content: [entry(-1), entry(-1), entry(0.5)] } }),
      /above 0/,
    ],
    [
      'a gap between version spans',
      (r) => withChoice(r, { weight_versions: [{ version: '1', start: 1, end: 3 }] }),
      /weight_versions\.0/,
    ],
    [
      'version spans that end early',
      (r) => withChoice(r, { weight_versions: [{ version: '1', start: 0, end: 2 }] }),
      /cover 2 of 3/,
    ],
    ['an unknown finish reason', (r) => withChoice(r, { finish_reason: 'error' }), /finish_reason is "error"/],
    ['two choices', (r) => ({ ...r, choices: [...(r.choices as []), ...(r.choices as [])] }), /choices/],
    ['the id of another call', (r) => ({ ...r, id: 'chatcmpl-cpl_other' }), /answers chatcmpl-cpl_other/],
    ['another model', (r) => ({ ...r, model: 'toy-2' }), /model is "toy-2", at registration it was toy/],
    [
      'experts of another number of tokens',
      (r) => withChoice(r, { routed_experts: { data: 'AAAA', shape: [3, 1, 1], dtype: 'uint8' } }),
      /routed_experts has 3 rows from position 0 on, not 6/,
    ],
    [
      'an error with status 200',
      () => ({ error: { message: 'out of memory' } }),
      /200 with an error inside: out of memory/,
    ],
    ['an old error with status 200', () => ({ object: 'error', message: 'broken' }), /error inside: broken/],
    ['an unrelated body', () => 'hello', /body/],
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
  it.each(cases)('is rejected with an error that names the fault: %s', async (_, broken, message) => {
    server.onChat = (received) => json(received.response, 200, broken(vllmReply(received)));
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(message),
      details: { engine_id: new URL(server.baseUrl).host.replace(':', '-') },
    });
  });

  it('is rejected when a logprob is not a number', async () => {
    server.onChat = (received) => {
      received.response.end(JSON.stringify(vllmReply(received)).replace('"logprob":-0.25', '"logprob":1e999'));
    };
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', message: expect.stringMatching(/finite/) });
  });

  it('is rejected when its body is not JSON', async () => {
    server.onChat = ({ response }) => {
      response.end('<html>bad gateway</html>');
    };
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/not JSON/),
    });
  });
});

describe('server failures', () => {
  it.each([
    [400, 'engine_rejected', false],
    [401, 'engine_error', true],
    [404, 'engine_error', true],
    [429, 'engine_unavailable', true],
    [500, 'engine_error', true],
    [503, 'engine_unavailable', true],
  ])('status %d is reported as %s', async (status, code, named) => {
    server.onChat = ({ response }) =>
      json(response, status, { error: { message: 'what happened' } }, { 'retry-after': '3' });
    const failure = await generate().catch((error: unknown) => error);
    expect(failure).toMatchObject({ code, details: { status } });
    expect((failure as Error).message).toBe(
      named ? `engine ${engine?.info().engine_id}: what happened` : 'what happened',
    );
    if (code === 'engine_unavailable') expect(failure).toMatchObject({ details: { retry_after_ms: 3_000 } });
  });

  it.each([
    ['by parameter', { message: 'too long', param: 'input_tokens' }],
    ['by wording', { message: "This model's maximum context length is 4096 tokens.", param: null }],
  ])('an overlong prompt is recognised %s and keeps its message', async (_, error) => {
    server.onChat = ({ response }) => json(response, 400, { error });
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_rejected',
      message: error.message,
      details: { context_overflow: true },
    });
  });

  it('reject with an engine error for a connection that breaks during the reply, because tokens may have been sampled', async () => {
    server.onChat = ({ response }) => {
      response.writeHead(200, { 'content-length': 1000 });
      response.write('{"id":', () => response.destroy());
    };
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error' });
    expect(engine?.info()).toMatchObject({ healthy: false, inflight: 0 });
  });

  it('reject with engine_unavailable when the server cannot be reached', async () => {
    await connect();
    await server.close();
    await expect(generate()).rejects.toMatchObject({ code: 'engine_unavailable' });
    await server.listen();
  });

  it('reject with the reason of the signal on an abort, which closes the connection', async () => {
    await connect();
    const controller = new AbortController();
    const closed = new Promise<void>((resolve) => {
      server.onChat = ({ response }) => {
        response.once('close', resolve);
        controller.abort(new Error('enough'));
      };
    });
    await expect(engine?.generate(request(), controller.signal)).rejects.toThrow('enough');
    await closed;
    expect(engine?.info().inflight).toBe(0);
  });

  it('reject the connection when the server does not have the model', async () => {
    await expect(connect({ model: 'other' })).rejects.toMatchObject({ code: 'engine_error' });
  });
});
