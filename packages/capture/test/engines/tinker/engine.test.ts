import { systemClock, VirtualClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { bundledVocabulary } from '@floe-rl/sim';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { createTinkerEngine } from '../../../src/engines/tinker/engine.ts';
import { contractRequest, promptOf } from '../contract.ts';
import { generateAsPool } from '../pool-call.ts';
import { simTokenizerFolder, type TokenizerFolder } from '../tokenizer/sim-folder.ts';
import { type Sampled, TinkerServer } from './tinker-server.ts';

const never = new AbortController().signal;
const words = bundledVocabulary();
const END = words.special.imEnd;
const HELLO = words.encode('Hello.');
const tool = { type: 'function' as const, function: { name: 'look' } };
const withTools = { tools: [tool], toolsText: JSON.stringify([tool]) };

let server: TinkerServer;
let folder: TokenizerFolder;
let engine: Engine | null = null;

/** A reply with these ids and invented log-probabilities. */
function sampled(tokens: number[], over: Partial<Sampled> = {}): Sampled {
  return { tokens, logprobs: tokens.map((_, index) => -(index + 1) / 8), stop_reason: 'stop', ...over };
}

async function connect(over: object = {}, clock = systemClock): Promise<Engine> {
  const url = 'base_url' in over ? {} : { base_url: server.baseUrl };
  const spec = engineSpecSchema.parse({ kind: 'tinker', ...url, tokenizer: folder.path, ...over });
  engine = await createTinkerEngine(spec, { clock });
  return engine;
}

async function generate(over: Partial<GenerateRequest> = {}): Promise<GenerateReply> {
  return generateAsPool(engine ?? (await connect()), contractRequest('plain', over), never);
}

/** The last sampling request. Requests that measure the log-probabilities at registration do not count. */
const lastSample = () => server.samples.at(-1);

beforeEach(async () => {
  folder = simTokenizerFolder();
  server = new TinkerServer(() => sampled([...HELLO, END]));
  await server.listen();
});

afterEach(async () => {
  await engine?.close();
  engine = null;
  await server.close();
  folder.remove();
});

describe('connecting', () => {
  it('selects the first model that can be sampled, and reads its context length and template', async () => {
    server.models = [{ model_name: 'toy/train-only', sampleable: false }, ...server.models];
    const info = (await connect()).info();
    expect(info).toMatchObject({
      kind: 'tinker',
      model: 'toy/base',
      max_model_len: 4096,
      policy_version: 'toy/base',
      streaming: false,
      capabilities: { token_ids: true, token_input: 'generate', pause: false, abort: false, version_spans: false },
    });
    expect(info.capabilities.template).toMatchObject({ close_ids: [END], tail_render: true });
  });

  it('samples from saved weights and names them as the policy version', async () => {
    server.saved.add('tinker://run/1');
    const connected = await connect({ model: 'tinker://run/1' });
    expect(connected.info()).toMatchObject({ model: 'toy/base', policy_version: 'tinker://run/1' });
    const { versionSpans } = await generate();
    expect(versionSpans).toEqual([{ version: 'tinker://run/1', start: 0, end: HELLO.length + 1 }]);
    expect(lastSample()?.weights).toBe('tinker://run/1');
  });

  it('sends the API key in the header of the service, and shows it nowhere', async () => {
    server.key = 'tml-secret';
    const connected = await connect({ api_key: 'tml-secret' });
    await generate();
    for (const { headers } of server.calls) {
      expect(headers['x-api-key']).toBe('tml-secret');
      expect(headers.authorization).toBeUndefined();
    }
    expect(JSON.stringify(connected.info())).not.toContain('tml-secret');
  });

  it('exchanges the API key for a token when the server demands it, and renews a token that is refused', async () => {
    server.key = 'tml-secret';
    server.token = jwt('one', 600);
    await connect({ api_key: 'tml-secret' });
    expect(lastSample()?.headers['x-api-key']).toBe(server.token);
    server.token = jwt('two', 600);
    await generate();
    expect(lastSample()?.headers['x-api-key']).toBe(server.token);
    expect(server.requestsTo('/api/v1/auth/token')).toHaveLength(2);
  });

  it('renews a token after half of its lifetime', async () => {
    const clock = new VirtualClock();
    server.key = 'tml-secret';
    server.token = jwt('one', 600);
    await connect({ api_key: 'tml-secret' }, clock);
    server.token = jwt('two', 600);
    server.intercept = ({ path, headers }) =>
      path === '/api/v1/asample' && headers['x-api-key'] !== server.token ? { status: 500 } : undefined;
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', details: { status: 500 } });
    clock.advance(301_000);
    expect((await generate()).responseIds.length).toBe(HELLO.length + 1);
  });

  it.each([
    ['no tokenizer', { tokenizer: null }, 'setup_failed', 'needs `tokenizer`'],
    ['an unknown model', { model: 'toy/other' }, 'engine_error', 'toy/other not found'],
    ['a tool parser that floe does not have', { tool_parser: 'mistral' }, 'unsupported', 'tool_parser "mistral"'],
    ['a wrong API key', { api_key: 'tml-wrong' }, 'engine_error', 'invalid key'],
  ])('rejects a specification with %s', async (_, over, code, message) => {
    server.key = 'tml-secret';
    await expect(connect({ api_key: 'tml-secret', ...over })).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
    });
  });

  it('rejects with engine_unavailable when no server listens', async () => {
    const { baseUrl } = server;
    await server.close();
    await expect(connect({ base_url: baseUrl })).rejects.toMatchObject({ code: 'engine_unavailable' });
    await server.listen();
  });
});

describe('the mode of log-probabilities', () => {
  /** Lets the server report log-probabilities `ratio` times as large for sampled tokens as for tokens of a prompt. */
  function scoreWith(ratio: number, own: (index: number) => number = (index) => -0.2 * index): void {
    server.sample = ({ prompt, prompt_logprobs, sampling_params: { max_tokens } }) => {
      const ids = Array.from({ length: max_tokens }, () => HELLO[0] as number);
      const logprobs = ids.map((_, index) => own(index) * ratio);
      if (prompt_logprobs !== true) return { tokens: ids, logprobs, stop_reason: 'length' };
      const length = prompt.chunks[0]?.tokens.length ?? 0;
      const scored = Array.from({ length }, (_, at) => (at === 0 ? null : own(at - (length - 16))));
      return { tokens: ids, logprobs, stop_reason: 'length', prompt_logprobs: scored };
    };
  }

  it.each([
    [1, 'raw'],
    [4, 'processed'],
  ] as const)('is measured: %d times the own log-probability is %s', async (ratio, mode) => {
    scoreWith(ratio);
    const info = (await connect({ logprobs_mode: mode === 'raw' ? 'processed' : 'raw' })).info();
    expect(info.logprobs_mode).toBe(mode);
    expect(info.capabilities.notes.join()).toContain(`measured ${mode}`);
  });

  it.each([
    ['all tokens are certain', () => scoreWith(1, () => 0)],
    ['the server scores no prompts', () => {}],
  ])('is the configured one when %s', async (_, prepare) => {
    prepare();
    const info = (await connect({ logprobs_mode: 'raw' })).info();
    expect(info.logprobs_mode).toBe('raw');
    expect(info.capabilities.notes.join()).toContain('is believed');
  });
});

describe('requests', () => {
  it('carry the ids of the rendered messages, explicit sampling and the end tokens of the model', async () => {
    const { promptIds } = await generate({
      ...withTools,
      sampling: samplingSchema.parse({ temperature: 0.5, top_p: 0.9, top_k: 5 }),
      maxTokens: 50,
      seed: -3,
    });
    const { sampling_params, prompt } = lastSample() ?? {};
    expect(sampling_params).toEqual({
      max_tokens: 50,
      temperature: 0.5,
      top_p: 0.9,
      top_k: 5,
      seed: 2 ** 31 - 3,
      stop: [END],
    });
    expect(prompt?.chunks[0]?.tokens).toEqual([...promptIds]);
    const text = words.decode(promptIds);
    expect(text).toContain('"name":"look"');
    expect(text.endsWith('<|im_start|>assistant\n')).toBe(true);
  });

  it('are limited to the context that the prompt leaves', async () => {
    const { promptIds } = await generate({ maxTokens: null });
    expect(lastSample()?.sampling_params.max_tokens).toBe(4096 - promptIds.length);
    await generate({ maxTokens: 100_000 });
    expect(lastSample()?.sampling_params.max_tokens).toBe(4096 - promptIds.length);
  });

  it('are refused as too long when the prompt fills the context', async () => {
    const prompt = promptOf(new Int32Array(4096).fill(5));
    await expect(generate({ prompt })).rejects.toMatchObject({
      code: 'engine_rejected',
      details: { context_overflow: true },
    });
  });

  it('need a limit when the context length is unknown', async () => {
    server.models = [{ model_name: 'toy/base' }];
    folder.write('tokenizer_config.json', { eos_token: '<|im_end|>', model_max_length: 1e30 });
    await expect(generate({ maxTokens: null })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('set max_tokens'),
    });
    expect((await generate({ maxTokens: 9 })).finishReason).toBe('stop');
  });

  it('with stop strings name the end tokens as texts, because the API accepts no mixture', async () => {
    server.sample = () => sampled(words.encode('one two sev'));
    const { message, stop, finishReason } = await generate({ stop: ['two', 'never'] });
    expect(lastSample()?.sampling_params.stop).toEqual(['two', 'never', '<|im_end|>']);
    expect({ text: message.content, stop, finishReason }).toEqual({
      text: 'one ',
      stop: { kind: 'string', text: 'two' },
      finishReason: 'stop',
    });
  });

  it.each([
    ['tool_choice', { ...withTools, toolChoice: 'required' as const }],
    ['response_format', { responseFormat: { type: 'json_object' as const } }],
    ['min_p', { sampling: samplingSchema.parse({ min_p: 0.1 }) }],
    ['repetition_penalty', { sampling: samplingSchema.parse({ repetition_penalty: 1.1 }) }],
  ])('with %s are refused, because the reply would be sampled from another distribution', async (field, over) => {
    await connect();
    const before = server.samples.length;
    await expect(generate(over)).rejects.toMatchObject({ code: 'unsupported', details: { field } });
    expect(server.samples.length).toBe(before);
  });

  it('with images are unsupported', async () => {
    const image = { type: 'image_url', image_url: { url: 'https://x/y.png' } };
    const messageTexts = [JSON.stringify({ role: 'user', content: [{ type: 'text', text: 'What?' }, image] })];
    await expect(generate({ messageTexts })).rejects.toMatchObject({ code: 'unsupported', details: { images: true } });
  });

  it('that the chat template refuses are rejected with its message', async () => {
    const user = '{"role":"user","content":"a"}';
    const messageTexts = [user, '{"role":"system","content":"late"}', user];
    await expect(generate({ messageTexts })).rejects.toMatchObject({
      code: 'engine_rejected',
      message: expect.stringContaining('System message must be at the beginning.'),
    });
  });
});

describe('replies', () => {
  it('have exactly the ids and log-probabilities that the server sent', async () => {
    server.sample = () => sampled([...HELLO, END], { logprobs: [...HELLO, END].map((_, at) => -0.1 - at / 3) });
    const reply = await generate();
    expect([...reply.responseIds]).toEqual([...HELLO, END]);
    expect([...reply.responseLogprobs]).toEqual([...Float32Array.from([...HELLO, END], (_, at) => -0.1 - at / 3)]);
    expect(reply).toMatchObject({
      message: { role: 'assistant', content: 'Hello.' },
      stop: { kind: 'token', id: END },
      usage: { completion_tokens: HELLO.length + 1, cached_tokens: null },
    });
  });

  it('report the tokens of the prompt that came from the prefix cache', async () => {
    server.sample = () => sampled([...HELLO, END], { prompt_cache_hit_tokens: 7 });
    expect((await generate()).usage.cached_tokens).toBe(7);
  });

  it('separate thinking and tool calls, with the arguments as they were sampled', async () => {
    const text = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"id":  7.0}}\n</tool_call>';
    server.sample = () => sampled([...words.encode(text), END]);
    const { message, finishReason } = await generate({ ...withTools, completionId: 'cpl_1' });
    expect(finishReason).toBe('tool_calls');
    expect(message).toEqual({
      role: 'assistant',
      content: null,
      reasoning_content: 'Hm.',
      tool_calls: [{ id: 'call_cpl_1_0', type: 'function', function: { name: 'look', arguments: '{"id":  7.0}' } }],
    });
  });

  it('end at any end token that the files of the model declare', async () => {
    folder.write('generation_config.json', { eos_token_id: [END, words.special.endOfText] });
    server.sample = () => sampled([...HELLO, words.special.endOfText]);
    expect((await generate()).stop).toEqual({ kind: 'token', id: words.special.endOfText });
  });

  it.each<[string, Partial<Sampled>, string]>([
    ['no tokens', { tokens: [], logprobs: [] }, 'tokens is empty'],
    ['no log-probabilities', { logprobs: undefined }, 'logprobs is missing'],
    ['too few log-probabilities', { logprobs: [-1] }, 'logprobs has 1 entries'],
    ['a log-probability above 0', { logprobs: [...HELLO, END].map(() => 0.5) }, 'above 0'],
    ['a log-probability that is no number', { logprobs: [...HELLO, END].map(() => Number.NaN) }, 'not a finite number'],
    ['a stop for no reason', { tokens: HELLO, logprobs: HELLO.map(() => -1) }, 'neither at an end token nor at a stop'],
    ['tokens after an end token', { tokens: [END, END, END], logprobs: [-1, -1, -1] }, 'continues after the end token'],
    [
      'more tokens than the limit',
      { tokens: new Array(201).fill(5), logprobs: new Array(201).fill(-1), stop_reason: 'length' },
      'more than the bound of 200',
    ],
  ])('with %s are refused', async (_, over, message) => {
    await connect();
    server.sample = () => sampled([...HELLO, END], over);
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining(message),
    });
  });
});

describe('waiting for results', () => {
  it('continues while the server reports that the result is not ready', async () => {
    await connect();
    let polls = 0;
    server.intercept = ({ path }) => {
      if (path !== '/api/v1/retrieve_future') return undefined;
      polls++;
      if (polls === 1) return { status: 408, body: { queue_state: 'active' } };
      return polls === 2 ? { body: { type: 'try_again', request_id: 'x', queue_state: 'paused_capacity' } } : undefined;
    };
    expect((await generate()).finishReason).toBe('stop');
    expect(polls).toBe(3);
    expect(server.requestsTo('/api/v1/asample').length).toBe(server.samples.length);
  });

  it('repeats a request for a result that failed, without sampling again', async () => {
    await connect();
    const before = server.samples.length;
    let polls = 0;
    server.intercept = ({ path, response }) => {
      if (path !== '/api/v1/retrieve_future' || ++polls > 2) return undefined;
      if (polls === 1) return { status: 502, body: { detail: 'bad gateway' } };
      response.destroy();
      return null;
    };
    expect((await generate()).finishReason).toBe('stop');
    expect(server.samples.length).toBe(before + 1);
  });

  it.each([
    ['status 410', { status: 410, body: { detail: 'gone' } }, 'engine_unavailable'],
    ['status 400', { status: 400, body: { detail: 'out of memory' } }, 'engine_error'],
    ['a failure of the server', { body: { error: 'lost', category: 'server' } }, 'engine_error'],
    ['a failure of the user', { body: { error: 'prompt is too long', category: 'user' } }, 'engine_rejected'],
    ['a body that is no result', { body: { sequences: [] } }, 'engine_error'],
    ['a truncated message', { body: Buffer.from([0x0a, 0x20, 0x01]) }, 'engine_error'],
  ])('ends with %s', async (_, answer, code) => {
    await connect();
    server.intercept = ({ path }) => (path === '/api/v1/retrieve_future' ? answer : undefined);
    await expect(generate()).rejects.toMatchObject({ code });
  });

  it('rejects with engine_unavailable and the pause that a busy server requests', async () => {
    await connect();
    server.intercept = ({ path }) =>
      path === '/api/v1/asample'
        ? { status: 429, body: { detail: 'busy' }, headers: { 'retry-after': '3' } }
        : undefined;
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_unavailable',
      details: { status: 429, retry_after_ms: 3000 },
    });
  });

  it('cancels the sampling of a call that is aborted, where the server supports it', async () => {
    server.canCancel = true;
    const connected = await connect();
    expect(connected.info().capabilities.abort).toBe(true);
    const cancelled = new Promise<void>((resolve) => {
      server.sample = ({ signal }) => {
        signal.addEventListener('abort', () => resolve());
        return new Promise(() => {});
      };
    });
    const abort = new AbortController();
    const waiting = arrivalOf('/api/v1/retrieve_future');
    const reply = connected.generate(contractRequest('plain'), abort.signal);
    await waiting;
    abort.abort(new Error('enough'));
    await expect(reply).rejects.toThrow('enough');
    await cancelled;
  });
});

describe('policy versions', () => {
  it('that are paths of saved weights switch to these weights', async () => {
    server.saved.add('tinker://run/2');
    const connected = await connect();
    connected.setPolicyVersion('tinker://run/2');
    expect(await connected.policyVersion()).toBe('tinker://run/2');
    const { versionSpans } = await generate();
    expect(lastSample()?.weights).toBe('tinker://run/2');
    expect(versionSpans).toEqual([{ version: 'tinker://run/2', start: 0, end: HELLO.length + 1 }]);
  });

  it('that are other names name the same weights', async () => {
    const connected = await connect();
    connected.setPolicyVersion('step-9');
    const { versionSpans } = await generate();
    expect(lastSample()?.weights).toBe('toy/base');
    expect(versionSpans).toEqual([{ version: 'step-9', start: 0, end: HELLO.length + 1 }]);
  });

  it('leave a reply under way with the version of the weights that sample it', async () => {
    server.saved.add('tinker://run/2');
    const connected = await connect();
    server.sample = () => {
      connected.setPolicyVersion('tinker://run/2');
      return sampled([...HELLO, END]);
    };
    expect((await generate()).versionSpans).toEqual([{ version: 'toy/base', start: 0, end: HELLO.length + 1 }]);
  });

  it('that do not exist fail calls until another version is set', async () => {
    server.saved.add('tinker://run/3');
    const connected = await connect();
    connected.setPolicyVersion('tinker://run/2');
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('tinker://run/2 not found'),
    });
    connected.setPolicyVersion('tinker://run/3');
    expect((await generate()).versionSpans[0]?.version).toBe('tinker://run/3');
  });
});

describe('sessions', () => {
  it('are reported as used every ten seconds', async () => {
    const clock = new VirtualClock();
    await connect({}, clock);
    expect(server.requestsTo('/api/v1/session_heartbeat')).toHaveLength(0);
    const beat = arrivalOf('/api/v1/session_heartbeat');
    clock.advance(10_000);
    await beat;
  });

  it('are created again after the server has ended them', async () => {
    await connect();
    server.endSessions();
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', details: { status: 404 } });
    expect((await generate()).finishReason).toBe('stop');
    expect(server.requestsTo('/api/v1/create_session')).toHaveLength(2);
  });

  it('number their sampling requests', async () => {
    await connect();
    await generate();
    await generate();
    const numbers = server.samples.map(({ seq_id }) => seq_id);
    expect(numbers).toEqual(numbers.map((_, index) => index));
  });
});

/** Resolves when the server has received a request to `path`. */
function arrivalOf(path: string): Promise<void> {
  return new Promise((resolve) => {
    server.intercept = (call) => {
      if (call.path === path) resolve();
      return undefined;
    };
  });
}

/** A token of the server that is valid for `seconds`. */
function jwt(name: string, seconds: number): string {
  const claims = Buffer.from(JSON.stringify({ sub: name, iat: 1000, exp: 1000 + seconds })).toString('base64url');
  return `eyJ.${claims}.signature`;
}
