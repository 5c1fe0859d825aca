import { type Clock, systemClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type Handler, json, type Received, ScriptedServer } from '../../../capture/test/engines/scripted-server.ts';
import { mainConversation } from '../../src/loop/conversation.ts';
import { completionsUrl, httpModel } from '../../src/loop/http-model.ts';
import type { Conversation } from '../../src/tools/conversation.ts';

const saying = (content: string): Handler => {
  return ({ response }) =>
    json(response, 200, {
      id: `id of ${content}`,
      choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 7, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 3 } },
    });
};

/** The pauses between the tries of a call, in ms. `hastyClock` ends each pause at once. */
const pauses: number[] = [];
const hastyClock: Clock = {
  ...systemClock,
  schedule(delayMs, callback) {
    // A longer delay is the time limit of a try.
    if (delayMs > 100_000) return systemClock.schedule(delayMs, callback);
    pauses.push(delayMs);
    return systemClock.schedule(0, callback);
  },
};

let server: ScriptedServer;
const closing: (() => Promise<void>)[] = [];

beforeEach(async () => {
  pauses.length = 0;
  server = new ScriptedServer(saying('hello'));
  await server.listen();
});
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
  await server.close();
});

function conversation(options: { baseUrl?: string; apiKey?: string | null; signal?: AbortSignal } = {}): Conversation {
  const { baseUrl = server.baseUrl, apiKey = 'secret', signal = new AbortController().signal } = options;
  const model = httpModel({ baseUrl, apiKey, model: 'toy', clock: hastyClock, random: () => 1 });
  closing.push(() => model.close());
  return mainConversation(model, signal);
}

/** Answers the calls with the handlers in their order, and the rest with the last. */
function answering(...handlers: Handler[]): void {
  let count = 0;
  server.onChat = (received) => handlers[Math.min(count++, handlers.length - 1)]?.(received);
}

const failing = (status: number, body: unknown, headers: Record<string, string> = {}): Handler => {
  return ({ response }: Received) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  };
};

describe('a model at a URL', () => {
  it('gets the whole conversation with its tools in each call, with the thread and the key in headers', async () => {
    const main = conversation();
    main.push({ role: 'user', content: 'hi' });
    const tool = { type: 'function' as const, function: { name: 'add', parameters: { type: 'object' } } };
    await main.ask({ tools: [tool], toolChoice: 'required', maxTokens: 9 });
    main.push({ role: 'user', content: 'and?' });
    await main.ask();
    const helper = main.fork('helper', { messages: [{ role: 'user', content: 'help' }], train: false });
    await helper.ask({ tools: [] });
    const [first, second, third] = server.chats;
    expect(first?.body).toEqual({
      model: 'toy',
      messages: [{ role: 'user', content: 'hi' }],
      tools: [tool],
      tool_choice: 'required',
      max_tokens: 9,
    });
    expect(first?.headers).toMatchObject({ authorization: 'Bearer secret', 'x-floe-thread': 'main' });
    expect(first?.headers).not.toHaveProperty('x-floe-kind');
    expect(second?.body.messages).toEqual([
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: 'hello' },
      { role: 'user', content: 'and?' },
    ]);
    expect(third?.body).toEqual({ model: 'toy', messages: [{ role: 'user', content: 'help' }] });
    expect(third?.headers).toMatchObject({ 'x-floe-thread': 'helper', 'x-floe-kind': 'untrained' });
  });

  it('gives replies with their id, thinking, tool calls and usage', async () => {
    const call = { id: 'c1', type: 'function', function: { name: 'add', arguments: '{"a": 1' } };
    server.onChat = ({ response }) =>
      json(response, 200, {
        id: 'r1',
        choices: [{ message: { content: null, reasoning: 'hm', tool_calls: [call] }, finish_reason: 'stop' }],
      });
    expect(await conversation().ask()).toEqual({
      completionId: 'r1',
      message: { role: 'assistant', content: null, reasoning_content: 'hm', tool_calls: [call] },
      finishReason: 'tool_calls',
      usage: { prompt_tokens: 0, completion_tokens: 0, cached_tokens: null },
    });
    server.onChat = saying('hello');
    expect(await conversation().ask()).toMatchObject({
      completionId: 'id of hello',
      finishReason: 'stop',
      usage: { prompt_tokens: 7, completion_tokens: 2, cached_tokens: 3 },
    });
  });

  it('is called again with growing pauses after 5xx and a closed connection, and marks the retries', async () => {
    answering(
      failing(500, 'oops'),
      ({ response }) => void response.destroy(),
      failing(503, { error: 'starting' }),
      saying('at last'),
    );
    expect((await conversation().ask()).message.content).toBe('at last');
    expect(pauses).toEqual([500, 1_000, 2_000]);
    expect(server.chats.map(({ headers }) => headers['x-stainless-retry-count'])).toEqual(['0', '1', '2', '3']);
  });

  it('waits as long as the server asks after 429, but at most a minute', async () => {
    answering(failing(429, {}, { 'retry-after': '7' }), failing(429, {}, { 'retry-after': '9999' }), saying('ok'));
    await conversation().ask();
    expect(pauses).toEqual([7_000, 60_000]);
  });

  it('fails with the last error when no try succeeds', async () => {
    answering(failing(429, { error: { message: 'slow down', code: 'rate_limit_exceeded' } }));
    await expect(conversation().ask()).rejects.toMatchObject({
      code: 'overloaded',
      message: expect.stringContaining('replied 429: slow down'),
    });
    expect(server.chats).toHaveLength(7);
  });

  it.each([
    [400, { error: { message: 'too long', code: 'context_length_exceeded' } }, 'engine_rejected', /too long/],
    [401, { error: { message: 'no key' } }, 'unauthorized', /401: no key/],
    [403, 'go away', 'forbidden', /go away/],
    [404, { detail: 'Not Found' }, 'not_found', /Not Found/],
    [410, { error: { message: 'over', code: 'session_closed' } }, 'session_closed', /over/],
    [413, '<html>', 'body_too_large', /<html>/],
    [422, { error: 'bad field' }, 'engine_rejected', /bad field/],
  ])('fails at once with a typed error after status %i', async (status, body, code, message) => {
    server.onChat = failing(status, body);
    await expect(conversation().ask()).rejects.toMatchObject({ code, message: expect.stringMatching(message) });
    expect(server.chats).toHaveLength(1);
  });

  it('marks an error for a conversation that no longer fits', async () => {
    server.onChat = failing(400, { error: { message: 'too long', code: 'context_length_exceeded' } });
    await expect(conversation().ask()).rejects.toMatchObject({ details: { status: 400, context_overflow: true } });
  });

  it.each([
    ['is not JSON', 'Hello!', /not JSON: Hello!/],
    ['has no choice', { choices: [] }, /choices/],
    ['has text for tool calls', { choices: [{ message: { tool_calls: 'add' } }] }, /choices\.0\.message\.tool_calls/],
    ['was withheld', { choices: [{ message: {}, finish_reason: 'content_filter' }] }, /content filter/],
  ])('fails with a typed error for a reply that %s', async (_, body, message) => {
    server.onChat = failing(200, body);
    await expect(conversation().ask()).rejects.toMatchObject({
      code: expect.stringMatching(/^engine_(error|rejected)$/),
      message: expect.stringMatching(message),
    });
  });

  it('fails with peer_unreachable when nothing listens', async () => {
    await expect(conversation({ baseUrl: 'http://127.0.0.1:1' }).ask()).rejects.toMatchObject({
      code: 'peer_unreachable',
      message: expect.stringContaining('http://127.0.0.1:1/v1/chat/completions'),
    });
  });

  it('ends a running call when the episode ends', async () => {
    const ending = new AbortController();
    server.onChat = () => ending.abort(new Error('the episode is over'));
    await expect(conversation({ signal: ending.signal }).ask()).rejects.toThrow('the episode is over');
    expect(server.chats).toHaveLength(1);
  });
});

describe('the URL of a model', () => {
  it.each([
    ['http://host:1', 'http://host:1/v1/chat/completions'],
    ['http://host:1/', 'http://host:1/v1/chat/completions'],
    ['http://host:1/v1/', 'http://host:1/v1/chat/completions'],
    ['http://host:1/s/v1key', 'http://host:1/s/v1key/v1/chat/completions'],
    ['https://host/v1beta/openai', 'https://host/v1beta/openai/chat/completions'],
  ])('is made of the base URL %s with its version', (baseUrl, url) => {
    expect(completionsUrl(baseUrl)).toBe(url);
  });

  it.each(['', 'localhost:80', 'ftp://host', 'file:///etc'])('is refused for %j', (baseUrl) => {
    expect(() => completionsUrl(baseUrl)).toThrowError(expect.objectContaining({ code: 'bad_request' }));
  });
});
