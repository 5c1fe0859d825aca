import { VirtualClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateRequest } from '../../../src/engines/engine.ts';
import { createVllmEngine } from '../../../src/engines/vllm/engine.ts';
import type { ReplyDelta } from '../../../src/reply.ts';
import {
  eventText,
  json,
  type ReplyParts,
  ScriptedServer,
  sendStream,
  vllmChunks,
  vllmReply,
} from '../scripted-server.ts';

class Heard {
  readonly started: (number | null)[] = [];
  readonly deltas: ReplyDelta[] = [];
  readonly listener = {
    started: (promptTokens: number | null) => void this.started.push(promptTokens),
    delta: (delta: ReplyDelta) => {
      this.deltas.push(delta);
      for (const wake of this.waiting.splice(0)) wake();
    },
  };
  private readonly waiting: (() => void)[] = [];

  next(): Promise<void> {
    return new Promise((resolve) => this.waiting.push(resolve));
  }
}

let server: ScriptedServer;
let engine: Engine;
let notices: [string, Readonly<Record<string, unknown>>][];

beforeEach(async () => {
  server = new ScriptedServer((received) => sendStream(received.response, vllmChunks(received)));
  await server.listen();
  notices = [];
  const notice = (message: string, details: Readonly<Record<string, unknown>>) => void notices.push([message, details]);
  engine = await createVllmEngine(engineSpecSchema.parse({ base_url: server.baseUrl }), {
    clock: new VirtualClock(),
    notice,
  });
});
afterEach(async () => {
  await engine.close();
  await server.close();
});

function request(over: Partial<GenerateRequest> = {}): GenerateRequest {
  return {
    completionId: 'cpl_mine',
    sessionId: 'ses_1',
    pool: 'default',
    prompt: null,
    resumeFrom: null,
    policyVersion: null,
    messageTexts: ['{"role":"user","content":"hi"}'],
    tools: [],
    toolsText: '[]',
    toolChoice: null,
    parallelToolCalls: null,
    responseFormat: null,
    sampling: samplingSchema.parse({}),
    maxTokens: null,
    stop: [],
    seed: null,
    ...over,
  };
}

function generate(relayed = new Heard(), signal = new AbortController().signal) {
  return engine.generate(request({ listener: relayed.listener }), signal);
}

const calls = [
  { id: 'call_1', name: 'sh', arguments: '{"b":1, "a": "é😀"}' },
  { id: 'call_2', name: 'read', arguments: '{}' },
];
const replies: [string, ReplyParts][] = [
  ['text', {}],
  ['thinking and text', { reasoning: 'Well, ü…', content: 'Häl\nlo 😀', responseIds: [1, 2, 3, 4, 5, 6, 7] }],
  ['parallel calls', { content: null, toolCalls: calls, responseIds: [9, 8, 7] }],
  ['text before calls', { content: 'Let me look.\n', toolCalls: calls, responseIds: [9, 8, 7, 6] }],
  ['the length', { finish: 'length' }],
  ['a stop string', { stopReason: 'END' }],
  ['a stop token', { stopReason: 99 }],
  ['an interrupted reply', { finish: 'abort' }],
  ['an empty text', { content: '' }],
];

describe('a streamed reply', () => {
  it.each(replies)('with %s equals the reply that is not streamed', async (_, parts) => {
    server.onChat = (received) => json(received.response, 200, vllmReply(received, parts));
    const whole = await engine.generate(request(), new AbortController().signal);
    server.onChat = (received) => sendStream(received.response, vllmChunks(received, parts));
    const relayed = new Heard();
    expect(await generate(relayed)).toEqual(whole);
    expect(relayed.started).toEqual([4]);
    const { reasoning_content = '', content, tool_calls = [] } = whole.message;
    const joined = (kind: ReplyDelta['kind']) =>
      relayed.deltas.map((delta) => (delta.kind === kind && 'text' in delta ? delta.text : '')).join('');
    expect(joined('reasoning')).toBe(reasoning_content);
    expect(joined('text')).toBe(content ?? '');
    expect(joined('arguments')).toBe(tool_calls.map((call) => call.function.arguments).join(''));
    expect(relayed.deltas.filter(({ kind }) => kind === 'call')).toEqual(
      tool_calls.map((call, index) => ({ kind: 'call', index, id: call.id, name: call.function.name })),
    );
  });

  it('is requested with all fields for exact tokens, and only with a listener', async () => {
    await generate();
    expect(server.chats[0]?.body).toMatchObject({
      stream: true,
      stream_options: { include_usage: true },
      logprobs: true,
      return_token_ids: true,
      return_tokens_as_token_ids: true,
      include_reasoning: true,
    });
    server.onChat = (received) => json(received.response, 200, vllmReply(received));
    await engine.generate(request(), new AbortController().signal);
    expect(server.chats[1]?.body).toMatchObject({ stream: false });
    expect(server.chats[1]?.body).not.toHaveProperty('stream_options');
  });

  it('may be split anywhere, inside of characters too', async () => {
    server.onChat = async (received) => {
      const parts = { reasoning: 'ü', content: 'é😀', responseIds: [1, 2, 3, 4] };
      const bytes = Buffer.from([...vllmChunks(received, parts), '[DONE]'].map(eventText).join(''));
      received.response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (const byte of bytes) {
        if (!received.response.write(Buffer.of(byte)))
          await new Promise((resolve) => received.response.once('drain', resolve));
      }
      received.response.end();
    };
    const { message } = await generate();
    expect(message).toMatchObject({ reasoning_content: 'ü', content: 'é😀' });
  });

  it('is passed to the listener while it arrives', async () => {
    const relayed = new Heard();
    let release = (): void => {};
    server.onChat = (received) => {
      const [first, second, ...rest] = vllmChunks(received);
      received.response.writeHead(200, { 'content-type': 'text/event-stream' });
      received.response.write(eventText(first) + eventText(second));
      release = () => received.response.end([...rest, '[DONE]'].map(eventText).join(''));
    };
    const reply = generate(relayed);
    await relayed.next();
    expect(relayed).toMatchObject({ started: [4], deltas: [{ kind: 'text', text: 'Hel' }] });
    release();
    expect((await reply).message.content).toBe('Hello.');
  });

  it('is read as one body when the server does not stream', async () => {
    server.onChat = (received) => json(received.response, 200, vllmReply(received));
    const relayed = new Heard();
    expect((await generate(relayed)).message.content).toBe('Hello.');
    expect(relayed.started).toEqual([]);
  });

  it('may have log-probabilities with ids, version spans and unknown fields', async () => {
    server.onChat = (received) => {
      const chunks = vllmChunks(received, { logprobs: [-1, -2, -3] });
      const finish = chunks.at(-2) as { choices: Record<string, unknown>[] };
      const spans = [
        { version: '1', start: 0, end: 2 },
        { version: 2, start: 2, end: 3 },
      ];
      if (finish.choices[0]) finish.choices[0].weight_versions = spans;
      sendStream(received.response, [{ ...chunks[0], later: true }, ...chunks.slice(1)]);
    };
    const known = { listener: new Heard().listener, policyVersion: '1' };
    const reply = await engine.generate(request(known), new AbortController().signal);
    expect([...reply.responseLogprobs]).toEqual([-1, -2, -3]);
    expect(reply.versionSpans).toEqual([
      { version: '1', start: 0, end: 2 },
      { version: '2', start: 2, end: 3 },
    ]);
  });
});

type Chunk = { choices: Record<string, unknown>[]; usage?: object; [field: string]: unknown };
type Change = (chunks: Chunk[]) => unknown[];

/** Makes a function that replaces fields of the choice in the chunk at `index`. */
const choice =
  (index: number, over: object): Change =>
  (chunks) =>
    chunks.map((chunk, i) => (i === index ? { ...chunk, choices: [{ ...chunk.choices[0], ...over }] } : chunk));
/** Makes a function that inserts a chunk between the finish chunk and the usage. */
const afterFinish =
  (over: object): Change =>
  (chunks) => {
    const [finish] = chunks.slice(-2);
    const more = { ...finish, choices: [{ index: 0, delta: {}, finish_reason: null, logprobs: null, ...over }] };
    return [...chunks.slice(0, -1), more, ...chunks.slice(-1)];
  };
const entry = (logprob: unknown, token = 't') => ({ content: [{ token, logprob }] });

describe('a stream', () => {
  const cases: [string, Change, RegExp][] = [
    [
      'without prompt ids',
      ([first, ...rest]) => [{ ...first, prompt_token_ids: undefined }, ...rest],
      /prompt_token_ids is missing/,
    ],
    [
      'with prompt ids that are not token ids',
      ([first, ...rest]) => [{ ...first, prompt_token_ids: [1, -5] }, ...rest],
      /prompt_token_ids/,
    ],
    [
      'with prompt ids as one number',
      ([first, ...rest]) => [{ ...first, prompt_token_ids: -1 }, ...rest],
      /not an array/,
    ],
    ['with prompt ids twice', (chunks) => [chunks[0], ...chunks], /prompt_token_ids comes twice/],
    [
      'with ids lost',
      choice(2, { token_ids: [], logprobs: { content: [] } }),
      /token_ids has 2 ids, but usage.completion_tokens is 3/,
    ],
    ['with logprobs lost', choice(2, { logprobs: null }), /logprobs.content has 2 entries for 3/],
    [
      'without any logprobs',
      (chunks) =>
        chunks.map((chunk) =>
          chunk.choices[0] ? { ...chunk, choices: [{ ...chunk.choices[0], logprobs: null }] } : chunk,
        ),
      /logprobs.content is missing/,
    ],
    ['with a logprob of null', choice(2, { logprobs: entry(null) }), /content\.1\.logprob is not a finite number/],
    ['with a logprob above 0', choice(2, { logprobs: entry(0.5) }), /content\.1\.logprob is 0\.5, above 0/],
    [
      'with a logprob of another id',
      choice(2, { logprobs: entry(-1, 'token_id:77') }),
      /content\.1 is of token_id:77, but token_ids\.1 is 12/,
    ],
    ['without usage', (chunks) => chunks.slice(0, -1), /usage is missing/],
    [
      'without a finish chunk',
      (chunks) => [...chunks.slice(0, -2), ...chunks.slice(-1)],
      /broke off: it has no finish chunk/,
    ],
    ['with an unknown finish reason', choice(3, { finish_reason: 'error' }), /finish_reason is "error"/],
    [
      'with an error chunk',
      (chunks) => [...chunks.slice(0, 2), { error: { message: 'out of memory' } }],
      /error inside: out of memory/,
    ],
    [
      'with the id of another call',
      (chunks) => chunks.map((chunk) => ({ ...chunk, id: 'chatcmpl-cpl_other' })),
      /answers chatcmpl-cpl_other/,
    ],
    [
      'of another model',
      (chunks) => chunks.map((chunk) => ({ ...chunk, model: 'toy-2' })),
      /model is "toy-2", at registration it was toy/,
    ],
    ['with content after the finish', afterFinish({ delta: { content: 'more' } }), /content comes after the finish/],
    ['with thinking after the finish', afterFinish({ delta: { reasoning: 'hm' } }), /content comes after the finish/],
    [
      'with a call after the finish',
      afterFinish({ delta: { tool_calls: [{ index: 0, id: 'a', function: { name: 'f' } }] } }),
      /content comes after the finish/,
    ],
    ['with ids after the finish', afterFinish({ token_ids: [4] }), /token_ids come after the finish/],
    ['with logprobs after the finish', afterFinish({ logprobs: entry(-1) }), /logprobs come after the finish/],
    ['with a second finish', afterFinish({ finish_reason: 'stop' }), /second finish_reason comes after the finish/],
    [
      'with off-by-one logprobs',
      (chunks) =>
        [12, 2, 11].reduce(
          (sent, id, i) => choice(i + 1, { logprobs: entry(-1, `token_id:${id}`) })(sent) as Chunk[],
          chunks,
        ),
      /content\.0 is of token_id:12, but token_ids\.0 is 11/,
    ],
    [
      'with experts of fewer tokens',
      choice(3, { routed_experts: { data: 'AAAA', shape: [3, 1, 1], dtype: 'uint8' } }),
      /routed_experts has 3 rows from position 0 on, not 6/,
    ],
    [
      'with two choices',
      ([first, ...rest]) => [{ ...first, choices: [...(first?.choices ?? []), ...(first?.choices ?? [])] }, ...rest],
      /choices/,
    ],
    [
      'with a gap between calls',
      choice(1, { delta: { tool_calls: [{ index: 1, id: 'a', function: { name: 'f' } }] } }),
      /tool_calls\.1 arrives before/,
    ],
    [
      'with a call without a name',
      choice(1, { delta: { tool_calls: [{ index: 0, id: 'a' }] } }),
      /tool_calls\.0 has no name/,
    ],
    [
      'with a gap between version spans',
      choice(3, { weight_versions: [{ version: '1', start: 1, end: 3 }] }),
      /weight_versions\.0/,
    ],
    ['that is not JSON', (chunks) => [...chunks.slice(0, 2), '{"id": "chatcmpl-'], /not JSON/],
  ];
  it.each(cases)('%s is rejected with an error that names the fault', async (_, change, message) => {
    server.onChat = (received) => sendStream(received.response, change(vllmChunks(received) as Chunk[]));
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(message),
      details: { engine_id: engine.info().engine_id },
    });
    expect(engine.info().inflight).toBe(0);
  });

  it('is accepted with an empty chunk after the finish', async () => {
    server.onChat = (received) =>
      sendStream(received.response, afterFinish({ delta: { content: '' } })(vllmChunks(received) as Chunk[]));
    expect((await generate()).message.content).toBe('Hello.');
  });

  it('is rejected when [DONE] is missing', async () => {
    server.onChat = (received) => sendStream(received.response, vllmChunks(received), '');
    await expect(generate()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/\[DONE\]/),
    });
  });

  it('is rejected when its connection breaks after deltas', async () => {
    const relayed = new Heard();
    server.onChat = (received) => {
      const [first, second] = vllmChunks(received);
      received.response.writeHead(200, { 'content-type': 'text/event-stream' });
      received.response.write(eventText(first) + eventText(second));
      void relayed.next().then(() => received.response.destroy());
    };
    await expect(generate(relayed)).rejects.toMatchObject({ code: 'engine_error' });
    expect(relayed.deltas).toHaveLength(1);
  });
});

describe('an engine whose stream lost ids', () => {
  it('is used without streams from then on, with a notice', async () => {
    const lossy: Change = choice(2, { token_ids: [], logprobs: { content: [] } });
    server.onChat = (received) =>
      received.body.stream === true
        ? sendStream(received.response, lossy(vllmChunks(received) as Chunk[]))
        : json(received.response, 200, vllmReply(received));
    expect(engine.info().streaming).toBe(true);
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error', retryable: true });
    expect(engine.info().streaming).toBe(false);
    expect(notices).toEqual([
      [expect.stringMatching(/lost token ids/), expect.objectContaining({ engine_id: engine.info().engine_id })],
    ]);
    await expect(generate()).resolves.toMatchObject({ message: { content: 'Hello.' } });
    expect(server.chats.map(({ body }) => body.stream)).toEqual([true, false]);
  });

  it('keeps streaming after other errors', async () => {
    server.onChat = (received) =>
      sendStream(received.response, choice(2, { logprobs: entry(0.5) })(vllmChunks(received) as Chunk[]));
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error' });
    expect(engine.info().streaming).toBe(true);
  });
});

it('an engine does not stream when streaming is switched off', async () => {
  const quiet = await createVllmEngine(engineSpecSchema.parse({ base_url: server.baseUrl, stream: 'off' }), {
    clock: new VirtualClock(),
  });
  server.onChat = (received) => json(received.response, 200, vllmReply(received));
  expect(quiet.info().streaming).toBe(false);
  await quiet.generate(request({ listener: new Heard().listener }), new AbortController().signal);
  expect(server.chats[0]?.body.stream).toBe(false);
  await quiet.close();
});

it("an abort closes a stream's connection and rejects with its reason", async () => {
  const controller = new AbortController();
  const relayed = new Heard();
  const closed = new Promise<void>((resolve) => {
    server.onChat = (received) => {
      const [first, second] = vllmChunks(received);
      received.response.writeHead(200, { 'content-type': 'text/event-stream' });
      received.response.write(eventText(first) + eventText(second));
      received.response.once('close', resolve);
      void relayed.next().then(() => controller.abort(new Error('enough')));
    };
  });
  await expect(generate(relayed, controller.signal)).rejects.toThrow('enough');
  await closed;
  expect(engine.info().inflight).toBe(0);
});

it('a refused prompt keeps status and message, and a bound that is too large is dropped', async () => {
  server.onChat = (received) => {
    if (!('max_tokens' in received.body)) return sendStream(received.response, vllmChunks(received));
    json(received.response, 400, { error: { message: "This model's maximum context length is 4096 tokens." } });
  };
  const reply = engine.generate(
    request({ maxTokens: 4000, listener: new Heard().listener }),
    new AbortController().signal,
  );
  await expect(reply).resolves.toMatchObject({ finishReason: 'stop' });
  server.onChat = ({ response }) => json(response, 400, { error: { message: 'maximum context length' } });
  await expect(generate()).rejects.toMatchObject({ code: 'engine_rejected', details: { context_overflow: true } });
});
