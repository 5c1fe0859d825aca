import { systemClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateRequest } from '../../../src/engines/engine.ts';
import { createLlamaCppEngine } from '../../../src/engines/llama-cpp/engine.ts';
import { contractRequest, promptOf } from '../contract.ts';
import { generateAsPool } from '../pool-call.ts';
import { END, idsOf, LlamaCppServer, logprobOf } from './scripted-llama-cpp.ts';

const never = new AbortController().signal;
const tool = { type: 'function' as const, function: { name: 'look' } };
const withTools = { tools: [tool], toolsText: JSON.stringify([tool]) };

let server: LlamaCppServer;
let engine: Engine | null = null;

async function connect(over: object = {}): Promise<Engine> {
  engine = await createLlamaCppEngine(
    engineSpecSchema.parse({ kind: 'llama_cpp', base_url: server.baseUrl, ...over }),
    { clock: systemClock },
  );
  return engine;
}

const generate = async (over: Partial<GenerateRequest> = {}) =>
  generateAsPool(engine ?? (await connect()), contractRequest('plain', over), never);

beforeEach(async () => {
  server = new LlamaCppServer();
  await server.listen();
});

afterEach(async () => {
  await engine?.close();
  engine = null;
  await server.close();
});

describe('connecting', () => {
  it('reads model, context length, version and template', async () => {
    const info = (await connect({ api_key: 'secret' })).info();
    expect(info).toMatchObject({
      kind: 'llama_cpp',
      model: 'toy',
      max_model_len: 4096,
      server_version: 'b1-0c1e570',
      streaming: false,
      capabilities: { token_ids: true, token_input: 'completion', pause: false },
    });
    expect(info.capabilities.template.close_ids).toEqual([END]);
    expect(server.calls.every(({ headers }) => headers.authorization === 'Bearer secret')).toBe(true);
    expect(JSON.stringify(info)).not.toContain('secret');
  });

  it('notes that a server continues the last turn, so that its turns are not spliced', async () => {
    server.prefill = true;
    const { template, notes } = (await connect()).info().capabilities;
    expect(template.close_ids).toEqual([]);
    expect(notes.join('\n')).toContain('--no-prefill-assistant');
  });

  it('finds a model by any of its names', async () => {
    expect((await connect({ model: 'alias' })).info().model).toBe('toy');
  });

  it.each([
    ['another model', { model: 'nope' }, 'engine_error', 'does not serve nope, but toy'],
    ['a tool parser that floe does not have', { tool_parser: 'mistral' }, 'unsupported', 'tool_parser "mistral"'],
    ['a thinking parser', { reasoning_parser: 'gemma4' }, 'unsupported', 'reasoning_parser "gemma4"'],
  ])('rejects a server or specification with %s', async (_, over, code, message) => {
    await expect(connect(over)).rejects.toMatchObject({ code, message: expect.stringContaining(message) });
  });

  it('rejects with engine_unavailable while the model loads', async () => {
    const body = { error: { code: 503, message: 'Loading model', type: 'unavailable_error' } };
    server.intercept = () => ({ status: 503, body, headers: { 'retry-after': '2' } });
    await expect(connect()).rejects.toMatchObject({
      code: 'engine_unavailable',
      details: { status: 503, retry_after_ms: 2000 },
    });
  });

  it('rejects with engine_error naming what a server of another kind lacks', async () => {
    server.intercept = ({ path }, answer) => (path === '/props' ? { body: { version: '0.1' } } : answer);
    await expect(connect()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('/props is not that of llama.cpp: default_generation_settings'),
    });
  });
});

describe('requests', () => {
  it('render the messages and send their ids as the prompt, with explicit sampling', async () => {
    const { promptIds } = await generate({
      ...withTools,
      sampling: samplingSchema.parse({ top_k: 5, repetition_penalty: 1.5 }),
      maxTokens: 50,
      stop: ['END'],
      seed: -3,
    });
    const [sent] = server.requestsTo('/completion');
    expect(sent?.body).toMatchObject({
      model: 'toy',
      n_predict: 50,
      samplers: ['penalties', 'temperature', 'min_p', 'top_k', 'top_p'],
      temperature: 1,
      top_p: 1,
      top_k: 5,
      min_p: 0,
      repeat_penalty: 1.5,
      repeat_last_n: 4096,
      stop: ['END'],
      seed: 2 ** 32 - 4,
      stream: false,
      return_tokens: true,
      n_probs: 1,
    });
    expect(sent?.body.prompt).toEqual([...promptIds]);
    const rendered = server.requestsTo('/apply-template').at(-1)?.body;
    expect(rendered).toMatchObject({ tools: [tool], add_generation_prompt: true });
    expect(server.requestsTo('/tokenize').at(-1)?.body).toMatchObject({ add_special: true, parse_special: true });
  });

  it('send the ids of a prompt unchanged, and render nothing', async () => {
    await connect();
    const before = server.requestsTo('/apply-template').length;
    const prompt = { ids: Int32Array.of(5, 6, 7), json: Buffer.from('5, 6,7') };
    const reply = await generate({ prompt });
    expect(server.requestsTo('/completion')[0]?.text).toContain('"prompt":[5, 6,7]');
    expect([...reply.promptIds]).toEqual([5, 6, 7]);
    expect(server.requestsTo('/apply-template')).toHaveLength(before);
  });

  it('turn a response format into a JSON schema', async () => {
    await generate({ responseFormat: { type: 'json_object' } });
    await generate({
      responseFormat: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'array' } } },
    });
    expect(server.requestsTo('/completion').map(({ body }) => body.json_schema)).toEqual([
      { type: 'object' },
      { type: 'array' },
    ]);
  });

  it('are rejected when they force a tool call, because the server would not enforce it', async () => {
    await expect(generate({ ...withTools, toolChoice: 'required' })).rejects.toMatchObject({ code: 'unsupported' });
  });
});

describe('replies', () => {
  it('have text, ids, log-probabilities and usage', async () => {
    const reply = await generate();
    const ids = [...idsOf('Hello.'), END];
    expect([...reply.responseIds]).toEqual(ids);
    expect([...reply.responseLogprobs]).toEqual([...Float32Array.from(ids.map(logprobOf))]);
    expect(reply).toMatchObject({
      message: { role: 'assistant', content: 'Hello.' },
      finishReason: 'stop',
      stop: { kind: 'token', id: END },
      logprobsMode: 'processed',
      versionSpans: [{ version: null, start: 0, end: ids.length }],
      usage: { prompt_tokens: reply.promptIds.length, completion_tokens: ids.length, cached_tokens: 1 },
    });
  });

  it('have thinking and tool calls that are parsed from the text of the ids', async () => {
    server.reply =
      '<think>\nhm\n</think>\n\nOn it.\n<tool_call>\n{"name": "look", "arguments": {"b": 1,  "a": [2]}}\n</tool_call>';
    const { message, finishReason } = await generate(withTools);
    expect(finishReason).toBe('tool_calls');
    expect(message).toMatchObject({
      content: 'On it.',
      reasoning_content: 'hm',
      tool_calls: [{ function: { name: 'look', arguments: '{"b": 1,  "a": [2]}' } }],
    });
    expect((await generate({ ...withTools, toolChoice: 'none' })).message.tool_calls).toBeUndefined();
  });

  it('begin inside thinking when the prompt opens it', async () => {
    server.generationPrompt += '<think>\n';
    server.reply = 'hm\n</think>\n\nYes.';
    expect((await generate()).message).toEqual({ role: 'assistant', content: 'Yes.', reasoning_content: 'hm' });
  });

  it('have a stop string in the ids and not in the text', async () => {
    server.reply = 'one two three four';
    const reply = await generate({ stop: [' three'] });
    expect(reply).toMatchObject({ finishReason: 'stop', stop: { kind: 'string', text: ' three' } });
    expect(reply.message.content).toBe('one two');
    expect([...reply.responseIds]).toEqual(idsOf('one two three'));
  });

  it('get log-probabilities that the server left out from additional requests with the preceding ids', async () => {
    server.reply = 'aXYaXbY';
    server.hidden = (_, index) => index === 1 || index === 6;
    const { responseIds, responseLogprobs, promptIds } = await generate();
    expect([...responseLogprobs]).toEqual([...Float32Array.from([...responseIds].map(logprobOf))]);
    const extra = server.requestsTo('/completion').slice(1);
    expect(extra.map(({ body }) => [(body.prompt as number[]).length - promptIds.length, body.n_predict])).toEqual(
      [
        [1, 1],
        [1, 1],
        [6, 1],
        [6, 1],
      ].slice(0, extra.length),
    );
    expect(extra.length).toBeGreaterThanOrEqual(2);
  });

  it.each([0, 0.25])(
    'are sampled at the temperature of the request, also when they are resumed: %d',
    async (temperature) => {
      const sampling = samplingSchema.parse({ temperature });
      const sampled = await generate({ sampling });
      await generate({ sampling, prompt: promptOf(sampled.promptIds), resumeFrom: sampled });
      const sent = server.requestsTo('/completion').filter(({ body }) => body.logit_bias === undefined);
      expect(sent.map(({ body }) => body.temperature)).toEqual([temperature, temperature]);
    },
  );

  it('have processed log-probabilities, or raw ones when processed ones cannot be computed', async () => {
    const cool = samplingSchema.parse({ temperature: 0.5 });
    expect((await generate({ sampling: cool })).logprobsMode).toBe('processed');
    expect(server.requestsTo('/completion').at(-1)?.body.post_sampling_probs).toBe(true);
    const penalised = samplingSchema.parse({ repetition_penalty: 1.1 });
    expect((await generate({ sampling: penalised })).logprobsMode).toBe('raw');
    expect(server.requestsTo('/completion').at(-1)?.body.post_sampling_probs).toBe(false);
    await engine?.close();
    await connect({ logprobs_mode: 'raw' });
    expect((await generate({ sampling: cool })).logprobsMode).toBe('raw');
  });

  it('are sampled after their first part when they are resumed, and returned as one reply', async () => {
    server.reply = 'lo.';
    const prompt = promptOf(Int32Array.of(5, 6));
    const resumeFrom = {
      responseIds: Int32Array.from(idsOf('Hel')),
      responseLogprobs: Float32Array.of(-1, -2, -3),
      versionSpans: [{ version: 'v1', start: 0, end: 3 }],
      routedExperts: null,
    };
    (await connect()).setPolicyVersion('v2');
    const reply = await generate({ prompt, resumeFrom, maxTokens: 10 });
    expect(server.requestsTo('/completion')[0]?.body).toMatchObject({ prompt: [5, 6, ...idsOf('Hel')], n_predict: 7 });
    expect(reply.message.content).toBe('Hello.');
    expect([...reply.promptIds]).toEqual([5, 6]);
    expect([...reply.responseLogprobs.subarray(0, 3)]).toEqual([-1, -2, -3]);
    expect(reply.versionSpans).toEqual([
      { version: 'v1', start: 0, end: 3 },
      { version: 'v2', start: 3, end: 7 },
    ]);
    expect(reply.usage).toMatchObject({ prompt_tokens: 2, completion_tokens: 7 });
  });

  it('have no version when one is assigned during the call', async () => {
    await connect();
    engine?.setPolicyVersion('v1');
    server.intercept = ({ path }, answer) => {
      if (path === '/completion') engine?.setPolicyVersion('v2');
      return answer;
    };
    expect((await generate()).versionSpans[0]?.version).toBeNull();
  });

  it('are as long as the model wants when the request has no token limit', async () => {
    const reply = await generate({ maxTokens: null });
    expect(reply).toMatchObject({ finishReason: 'stop', message: { content: 'Hello.' } });
  });

  it('end with finish reason length at the token limit, and keep the text sampled until then', async () => {
    const reply = await generate({ maxTokens: 3 });
    expect(reply).toMatchObject({ finishReason: 'length', stop: null, message: { content: 'Hel' } });
  });
});

describe('invalid replies', () => {
  const faultyReplies: [string, object, string][] = [
    ['another prompt', { tokens_evaluated: 3 }, 'tokens_evaluated is 3'],
    ['ids missing', { tokens: [] }, 'tokens has 0 ids, but tokens_predicted is'],
    ['no log-probabilities', { completion_probabilities: null }, 'completion_probabilities is missing'],
    [
      'log-probabilities of another id',
      { completion_probabilities: [{ id: 1, logprob: -1 }] },
      'is of 1, which tokens does not have',
    ],
    ['a log-probability above 0', { completion_probabilities: [{ id: idsOf('H')[0], logprob: 1 }] }, 'is 1, above 0'],
    [
      'one that is not a number',
      { completion_probabilities: [{ id: idsOf('H')[0], logprob: 'x' }] },
      'not a finite number',
    ],
    ['a missing stopping word', { stop_type: 'word', stopping_word: '' }, 'stopping_word is missing'],
    ['a stopping word that the ids lack', { stop_type: 'word', stopping_word: 'zzz' }, 'which the ids do not contain'],
    ['an unknown end', { stop_type: 'none' }, 'stop_type'],
    ['a context that was shifted', { truncated: true, tokens_evaluated: 5000 }, 'tokens_evaluated'],
  ];
  it.each(faultyReplies)('reject with an engine error that names the fault: %s', async (_, change, message) => {
    server.intercept = ({ path, body }, answer) =>
      path === '/completion' && body.logit_bias === undefined
        ? { body: { ...(answer.body as object), ...change } }
        : answer;
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', message: expect.stringContaining(message) });
  });

  it('reject with an engine error when the server has changed its model', async () => {
    await connect();
    server.replyModel = 'other';
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('model is "other"'),
    });
  });

  it('reject with engine_unavailable when the reply was aborted before its first token', async () => {
    const nothing = { tokens: [], tokens_predicted: 0, completion_probabilities: [] };
    let stop_type = 'none';
    server.intercept = ({ path, body }, answer) =>
      path === '/completion' && body.logit_bias === undefined
        ? { body: { ...(answer.body as object), ...nothing, stop_type } }
        : answer;
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_unavailable',
      details: { engine_id: expect.any(String) },
    });
    stop_type = 'limit';
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('tokens is empty'),
    });
  });

  it('reject with an engine error when the context was shifted, even if the counts match', async () => {
    server.intercept = ({ path, body }, answer) => {
      if (path !== '/completion' || body.logit_bias !== undefined) return answer;
      return { body: { ...(answer.body as object), truncated: true } };
    };
    const prompt = promptOf(new Int32Array(4095).fill(5));
    await expect(generate({ prompt })).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('the context was shifted'),
    });
  });

  it('reject with an engine error when the server never reports a missing log-probability', async () => {
    server.hidden = () => true;
    server.intercept = ({ path, body }, answer) => {
      if (path !== '/completion' || body.logit_bias === undefined) return answer;
      const [entry] = (answer.body as { completion_probabilities: object[] }).completion_probabilities;
      return {
        body: {
          ...(answer.body as object),
          completion_probabilities: [{ ...entry, top_logprobs: [{ id: 1, logprob: -1 }] }],
        },
      };
    };
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('does not report the log-probability'),
    });
  });
});

describe('refusals', () => {
  const refused = (path: string, status: number, error: object) => {
    server.intercept = (call, answer) => (call.path === path ? { status, body: { error } } : answer);
  };

  it("an overlong prompt is rejected with the engine's message", async () => {
    await connect();
    const message = 'request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it';
    refused('/completion', 400, { code: 400, message, type: 'exceed_context_size_error', n_prompt_tokens: 5000 });
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_rejected',
      message,
      details: { context_overflow: true },
    });
  });

  it('messages that the template rejects are engine_rejected, although the server answers 500', async () => {
    await connect();
    refused('/apply-template', 500, { code: 500, message: 'image input is not supported', type: 'server_error' });
    await expect(generate()).rejects.toMatchObject({ code: 'engine_rejected', details: { status: 500 } });
  });

  it.each([
    [401, 'engine_error'],
    [503, 'engine_unavailable'],
  ])('messages that cannot be rendered because of status %i are reported as %s', async (status, code) => {
    await connect();
    refused('/apply-template', status, { code: status, message: 'no', type: 'x' });
    await expect(generate()).rejects.toMatchObject({ code });
  });

  it.each([
    [500, 'engine_error'],
    [401, 'engine_error'],
    [503, 'engine_unavailable'],
    [501, 'unsupported'],
  ])('status %i of a completion is reported as %s', async (status, code) => {
    await connect();
    refused('/completion', status, { code: status, message: 'no', type: 'x' });
    await expect(generate()).rejects.toMatchObject({ code });
  });

  it('an abort closes the connection', async () => {
    await connect();
    const controller = new AbortController();
    const closed = new Promise<void>((resolve) => {
      server.intercept = ({ path, response }, answer) => {
        if (path !== '/completion') return answer;
        response.once('close', resolve);
        controller.abort(new Error('enough'));
        return null;
      };
    });
    const reply = engine?.generate(contractRequest('plain'), controller.signal);
    await expect(reply).rejects.toThrow('enough');
    await closed;
    expect(engine?.info().inflight).toBe(0);
  });

  it("metrics are the server's, or null when it has none", async () => {
    const connected = await connect();
    expect(await connected.metrics(never)).toContain('llamacpp:requests_processing');
    refused('/metrics', 501, { code: 501, message: 'start it with --metrics', type: 'not_supported_error' });
    expect(await connected.metrics(never)).toBeNull();
  });
});
