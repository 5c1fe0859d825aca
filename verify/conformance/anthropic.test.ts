// Tests @anthropic-ai/sdk against the proxy's `anthropic` dialect.
import Anthropic, { type ClientOptions } from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { defined, type Floe, PNG, startFloe, TOO_LONG } from './floe.ts';
import { CITY } from './scenarios.ts';

let floe: Floe;
beforeAll(async () => {
  floe = await startFloe();
});
afterEach(() => floe.renew());
afterAll(() => floe.close());

type Params = Anthropic.MessageCreateParamsNonStreaming;
type Message = Anthropic.Message;
type Block = Anthropic.ContentBlock;

const client = (over: ClientOptions = {}) =>
  new Anthropic({ baseURL: floe.baseUrl, apiKey: floe.key, maxRetries: 0, ...over });
const ask = <Over extends Partial<Params>>(content: Anthropic.MessageParam['content'], over?: Over) => ({
  model: 'policy',
  max_tokens: 1024,
  messages: [{ role: 'user' as const, content }],
  ...over,
});
const Weather = z.object({ city: z.string() });
const WEATHER = {
  name: 'get_weather',
  description: 'The weather of a city',
  input_schema: { type: 'object' as const, properties: { city: { type: 'string' as const } }, required: ['city'] },
};
const NOTE: Anthropic.Tool = {
  name: 'save_note',
  input_schema: { type: 'object', properties: { text: { type: 'string' } } },
};
const png: Anthropic.ImageBlockParam = {
  type: 'image',
  source: { type: 'base64', media_type: 'image/png', data: PNG },
};
const result = (tool_use_id: string, content: string | [Anthropic.TextBlockParam, Anthropic.ImageBlockParam]) => ({
  type: 'tool_result' as const,
  tool_use_id,
  content,
});
/** Returns the first text of a message, without the line breaks that the simulated policy writes between thinking, text and calls. */
const textOf = ({ content }: { content: readonly Anthropic.Beta.BetaContentBlock[] | readonly Block[] }) => {
  for (const block of content) if (block.type === 'text') return block.text.trim();
  return undefined;
};
/** Returns the tool calls of a message. */
const callsOf = ({ content }: { content: readonly Anthropic.Beta.BetaContentBlock[] | readonly Block[] }) =>
  content.flatMap((block) =>
    block.type === 'tool_use' ? [{ id: block.id, name: block.name, input: Weather.parse(block.input) }] : [],
  );
const user = (content: Anthropic.MessageParam['content']) => ({ role: 'user' as const, content });
const assistant = ({ content }: Message) => ({ role: 'assistant' as const, content });

describe('a message', () => {
  it('has the usage that the engine counted', async () => {
    const message = await client().messages.create(ask('Hello'));
    expect(message).toMatchObject({ type: 'message', role: 'assistant', model: 'policy', stop_reason: 'end_turn' });
    expect(textOf(message)).toBe(floe.last.message.content);
    const { input_tokens, cache_read_input_tokens, output_tokens } = message.usage;
    expect(input_tokens + (cache_read_input_tokens ?? 0)).toBe(floe.last.promptIds.length);
    expect(output_tokens).toBe(floe.last.responseIds.length);
  });

  it('is the same when it is streamed and the SDK joins the pieces', async () => {
    const stream = client().messages.stream(ask('Tell me a story'));
    let text = '';
    stream.on('text', (piece) => {
      text += piece;
    });
    const message = await stream.finalMessage();
    expect(text).toBe(floe.last.message.content);
    expect(textOf(message)).toBe(text);
    expect(message.usage.output_tokens).toBe(floe.last.responseIds.length);
    expect(message.stop_reason).toBe('end_turn');
  });

  it('states the reason when it was cut at a limit', async () => {
    const cut = await client().messages.create(ask('Tell me a story', { max_tokens: 12 }));
    expect(cut.stop_reason).toBe('max_tokens');
    expect(cut.usage.output_tokens).toBe(12);
    const stopped = await client()
      .messages.stream(ask('Tell me a story', { stop_sequences: ['fox'] }))
      .finalMessage();
    expect(stopped).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: 'fox' });
    expect(textOf(stopped)).toBe('Once upon a time there was a');
  });
});

describe('tools', () => {
  it('are called, and their results reach the policy', async () => {
    const params = ask('How is the weather in Paris?', { tools: [WEATHER], system: 'Be brief.' });
    const first = await client().messages.create(params);
    expect(first.stop_reason).toBe('tool_use');
    expect(first.content.map(({ type }) => type)).toEqual(['thinking', 'text', 'tool_use']);
    const call = defined(callsOf(first)[0]);
    expect(call).toMatchObject({ name: 'get_weather', input: { city: 'Paris' } });
    const messages = [...params.messages, assistant(first), user([result(call.id, 'sun')])];
    const second = await client().messages.create({ ...params, messages });
    expect(textOf(second)).toBe('It is sunny in Paris.');
    await floe.checkOneTrace();
  });

  it('are called in parallel from a stream', async () => {
    const params = ask('How is the weather in Paris and Oslo?', { tools: [WEATHER] });
    const stream = client().messages.stream(params);
    const pieces: string[] = [];
    stream.on('inputJson', (piece) => pieces.push(piece));
    const first = await stream.finalMessage();
    const calls = callsOf(first);
    expect(calls.map(({ input }) => input)).toEqual([{ city: 'Paris' }, { city: 'Oslo' }]);
    expect(new Set(calls.map(({ id }) => id)).size).toBe(2);
    expect(pieces.join('')).toBe(
      defined(floe.last.message.tool_calls)
        .map((call) => call.function.arguments)
        .join(''),
    );
    const results = calls.map(({ id, input }) => result(id, input.city === 'Oslo' ? 'rain' : 'sun'));
    const messages = [...params.messages, assistant(first), user(results)];
    const second = await client()
      .messages.stream({ ...params, messages })
      .finalMessage();
    expect(textOf(second)).toBe('Sun in Paris, rain in Oslo.');
    await floe.checkOneTrace();
  });

  it.each([false, true])('are run by the tool runner (stream: %s)', async (stream) => {
    const ran: string[] = [];
    const tool = betaZodTool({
      ...WEATHER,
      inputSchema: z.object({ city: z.string() }),
      run: ({ city }) => {
        ran.push(city);
        return city === 'Oslo' ? 'rain' : 'sun';
      },
    });
    const params = { ...ask('How is the weather in Paris and Oslo?'), tools: [tool] };
    const message = stream
      ? await client().beta.messages.toolRunner({ ...params, stream: true })
      : await client().beta.messages.toolRunner({ ...params, stream: false });
    expect(textOf(message)).toBe('Sun in Paris, rain in Oslo.');
    expect(ran).toEqual(['Paris', 'Oslo']);
    await floe.checkOneTrace();
  });

  it.each([{ type: 'tool' as const, name: 'save_note' }, { type: 'any' as const }])(
    'can be forced: %o',
    async (tool_choice) => {
      const message = await client().messages.create(ask('Please remember milk.', { tools: [NOTE], tool_choice }));
      expect(message.stop_reason).toBe('tool_use');
      expect(message.content).toMatchObject([{ type: 'tool_use', name: 'save_note', input: { text: 'milk' } }]);
    },
  );

  it('are called one at a time when parallel calls are disabled', async () => {
    const message = await client().messages.create(
      ask('How is the weather in Paris and Oslo?', {
        tools: [WEATHER],
        tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      }),
    );
    expect(callsOf(message)).toHaveLength(1);
  });
});

describe('a message thread', () => {
  it('sends only new messages, and the policy receives the whole conversation', async () => {
    const tools = [WEATHER];
    const thread = client().beta.messages.thread({ model: 'policy', max_tokens: 1024, tools, system: 'Be brief.' });
    const first = await thread.send({ role: 'user', content: 'How is the weather in Paris and Oslo?' });
    const calls = callsOf(first);
    const content = calls.map(({ id, input }) => result(id, input.city === 'Oslo' ? 'rain' : 'sun'));
    const second = await thread.stream({ role: 'user', content }).finalMessage();
    expect(textOf(second)).toBe('Sun in Paris, rain in Oslo.');
    expect(thread.previousMessageId).toBe(second.id);
    expect(floe.last.request.tools).toHaveLength(1);
    await floe.checkOneTrace();
  });

  it('sends all messages again to a session that does not know the thread', async () => {
    /** A `fetch` that redirects requests to the base URL of the current session, so that one SDK client can be used for two sessions. */
    const fetchCurrent: typeof fetch = (url, init) => {
      const headers = new Headers(init?.headers);
      headers.delete('authorization');
      return fetch(String(url).replace(floe.proxy.origin, floe.baseUrl), { ...init, headers });
    };
    const moving = client({ baseURL: floe.proxy.origin, fetch: fetchCurrent });
    const thread = moving.beta.messages.thread({ model: 'policy', max_tokens: 1024 });
    await thread.send({ role: 'user', content: 'A riddle: tall when young, short when old?' });
    await floe.renew();
    expect(textOf(await thread.send({ role: 'user', content: 'Really?' }))).toBe('Still a candle.');
    expect(floe.session.requests).toBe(2);
    expect(floe.last.request.messages).toHaveLength(3);
  });
});

describe('thinking', () => {
  it.each([false, true])('is returned and can be sent back (stream: %s)', async (stream) => {
    const params: Params = ask('A riddle: tall when young, short when old?', {
      thinking: { type: 'enabled', budget_tokens: 1024 },
      max_tokens: 2048,
    });
    const send = (body: Params) =>
      stream ? client().messages.stream(body).finalMessage() : client().messages.create({ ...body, stream: false });
    const first = await send(params);
    const [thinking, text] = first.content;
    expect(thinking).toMatchObject({ type: 'thinking', thinking: floe.last.message.reasoning_content });
    if (thinking?.type !== 'thinking') throw new Error('the reply begins with no thinking');
    expect(thinking.thinking.trim()).toMatch(/^It melts\. \S/);
    expect(thinking.signature).not.toBe('');
    expect(text).toMatchObject({ type: 'text', text: expect.stringMatching(/^\s*A candle\.\s*$/) });
    const messages = [...params.messages, assistant(first), user('Really?')];
    expect(textOf(await send({ ...params, messages }))).toBe('Still a candle.');
    await floe.checkOneTrace();
  });
});

describe('structured output', () => {
  const City = z.object({ city: z.string(), population: z.number() });

  it('is parsed by the SDK', async () => {
    const params = ask('Tell me the facts about Paris.', { output_config: { format: zodOutputFormat(City) } });
    const message = await client().messages.parse(params);
    expect(message.parsed_output).toEqual(CITY);
    expect((await client().messages.stream(params).finalMessage()).parsed_output).toEqual(CITY);
  });
});

describe('images', () => {
  it('reach the policy', async () => {
    const content = [{ type: 'text' as const, text: 'How many in the picture?' }, png];
    expect(textOf(await client().messages.create(ask(content)))).toBe('One picture.');
    expect(textOf(await client().messages.create(ask([...content, png])))).toBe('Two pictures.');
  });

  it('reach the policy from a tool', async () => {
    const params = ask('How is the weather in Paris?', { tools: [WEATHER] });
    const first = await client().messages.create(params);
    const { id } = defined(callsOf(first)[0]);
    const messages = [
      ...params.messages,
      assistant(first),
      user([result(id, [{ type: 'text', text: 'A map:' }, png])]),
    ];
    expect(textOf(await client().messages.create({ ...params, messages }))).toBe('The map shows sun.');
    await floe.checkOneTrace();
  });
});

describe('errors', () => {
  it.each([false, true])('name a model that does not exist (stream: %s)', async (stream) => {
    const error = await client()
      .messages.create({ ...ask('Hello', { model: 'claude' }), stream })
      .catch((thrown) => thrown);
    expect(error).toBeInstanceOf(Anthropic.NotFoundError);
    expect(error).toMatchObject({ status: 404, type: 'not_found_error' });
    expect(error.message).toContain('no such model: claude');
  });

  it('report an invalid session key', async () => {
    const sent = client({ baseURL: floe.proxy.origin, apiKey: 'wrong' }).messages.create(ask('Hello'));
    await expect(sent).rejects.toBeInstanceOf(Anthropic.AuthenticationError);
  });

  it('report that the session has ended', async () => {
    await floe.session.close();
    await expect(client().messages.create(ask('Hello'))).rejects.toMatchObject({ status: 410 });
  });

  it.each([false, true])('report a prompt that is too long (stream: %s)', async (stream) => {
    const error = await client()
      .messages.create({ ...ask(TOO_LONG), stream })
      .catch((thrown) => thrown);
    expect(error).toBeInstanceOf(Anthropic.BadRequestError);
    expect(error.type).toBe('invalid_request_error');
    expect(error.message).toContain('prompt is too long');
  });

  it('refuse a request whose last message is a partial reply of the assistant', async () => {
    const messages = [user('Hello'), { role: 'assistant' as const, content: 'Good' }];
    const sent = client().messages.create(ask('', { messages }));
    await expect(sent).rejects.toBeInstanceOf(Anthropic.BadRequestError);
  });

  it.each([false, true])('of the engine are retried by the SDK (stream: %s)', async (stream) => {
    floe.sim.setFaults([{ kind: 'http_500', times: 1 }]);
    const retrying = client({ maxRetries: 2 }).messages;
    const message = await (stream ? retrying.stream(ask('Hello')).finalMessage() : retrying.create(ask('Hello')));
    expect(message.stop_reason).toBe('end_turn');
    expect(floe.session.requests).toBe(2);
  });

  it('of a busy engine do not reach the client, because the proxy retries the call', async () => {
    floe.sim.setFaults([{ kind: 'http_429', times: 1 }]);
    expect((await client().messages.create(ask('Hello'))).stop_reason).toBe('end_turn');
    expect(floe.session.requests).toBe(1);
  });
});

it('the proxy counts the tokens of a prompt', async () => {
  const { max_tokens, ...params } = ask('How is the weather?', { tools: [WEATHER], system: 'Be brief.' });
  const { input_tokens } = await client().messages.countTokens(params);
  await client().messages.create({ ...params, max_tokens });
  expect(floe.last.promptIds).toHaveLength(input_tokens);
});

it('the proxy lists the model of the session', async () => {
  const ids: unknown[] = [];
  for await (const { id, type } of client().models.list()) ids.push([type, id]);
  expect(ids).toEqual([['model', 'policy']]);
  expect(await client().models.retrieve('policy')).toMatchObject({ type: 'model', id: 'policy' });
  await expect(client().models.retrieve('claude')).rejects.toBeInstanceOf(Anthropic.NotFoundError);
});
