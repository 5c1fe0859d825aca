// Tests the openai SDK against the proxy's `openai_chat` dialect.
import OpenAI, { type ClientOptions } from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
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

type Params = Omit<OpenAI.ChatCompletionCreateParamsNonStreaming, 'stream'>;
type Completion = OpenAI.ChatCompletion;
type ToolCall = OpenAI.ChatCompletionMessageToolCall;
/** The field that floe adds to messages for the policy's thinking, as vLLM and SGLang do. */
type Reasoning = { readonly reasoning_content?: string };

const client = (over: ClientOptions = {}) =>
  new OpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey: floe.key, maxRetries: 0, ...over });
const chat = (over?: ClientOptions) => client(over).chat.completions;
const user = (content: OpenAI.ChatCompletionUserMessageParam['content']) => ({ role: 'user' as const, content });
const ask = <Over extends Partial<Params>>(content: OpenAI.ChatCompletionUserMessageParam['content'], over?: Over) => ({
  model: 'policy',
  messages: [user(content)],
  ...over,
});
const Delta = z.object({ reasoning_content: z.string().nullish() });
const Weather = z.object({ city: z.string() });
const WEATHER: OpenAI.ChatCompletionFunctionTool = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};
const NOTE: OpenAI.ChatCompletionFunctionTool = {
  type: 'function',
  function: { name: 'save_note', parameters: { type: 'object', properties: { text: { type: 'string' } } } },
};
const png: OpenAI.ChatCompletionContentPart = { type: 'image_url', image_url: { url: `data:image/png;base64,${PNG}` } };
const result = ({ id }: ToolCall, content: string) => ({ role: 'tool' as const, tool_call_id: id, content });
const argumentsOf = (call: ToolCall): unknown =>
  call.type === 'function' ? JSON.parse(call.function.arguments) : undefined;
const messageOf = ({ choices }: Completion): OpenAI.ChatCompletionMessage & Reasoning => defined(choices[0]).message;
const finishOf = ({ choices }: Completion) => choices[0]?.finish_reason;
const callsOf = (message: OpenAI.ChatCompletionMessage) => defined(message.tool_calls);
/** Returns the text of a completion, without the line breaks that the simulated policy writes between thinking, text and calls. */
const textOf = (completion: Completion) => messageOf(completion).content?.trim();

/**
 * Checks that both turns of a session are trained in the context in which they were sampled. They may be separate traces, because the SDK
 * does not send all thinking back: its tool runner drops `reasoning_content`, and its stream accumulator keeps only the last piece.
 */
async function checkContexts() {
  const { audit } = await floe.check();
  expect(audit).toMatchObject({ exact_context_share: 1, completions: { recorded: 2, trained: 2 } });
  expect(audit.tokens.trained).toBe(audit.tokens.sampled);
}

describe('a completion', () => {
  it('has the usage that the engine counted', async () => {
    const completion = await chat().create(ask('Hello'));
    expect(completion).toMatchObject({ object: 'chat.completion', model: 'policy' });
    expect(completion.choices).toMatchObject([{ index: 0, finish_reason: 'stop', message: { role: 'assistant' } }]);
    expect(messageOf(completion).content).toBe(floe.last.message.content);
    expect(completion.usage?.prompt_tokens).toBe(floe.last.promptIds.length);
    expect(completion.usage?.completion_tokens).toBe(floe.last.responseIds.length);
  });

  it('is the same when it is streamed and the SDK joins the pieces', async () => {
    const stream = chat().stream(ask('Tell me a story', { stream_options: { include_usage: true } }));
    let text = '';
    stream.on('content', (piece) => {
      text += piece;
    });
    const completion = await stream.finalChatCompletion();
    expect(text).toBe(floe.last.message.content);
    expect(completion.choices[0]).toMatchObject({ finish_reason: 'stop', message: { content: text } });
    expect((await stream.totalUsage()).completion_tokens).toBe(floe.last.responseIds.length);
  });

  it('states the reason when it was cut at a limit', async () => {
    const cut = await chat().create(ask('Tell me a story', { max_completion_tokens: 12 }));
    expect(finishOf(cut)).toBe('length');
    expect(cut.usage?.completion_tokens).toBe(12);
    const stopped = await chat().create(ask('Tell me a story', { stop: ['fox'] }));
    expect(stopped.choices[0]).toMatchObject({
      finish_reason: 'stop',
      message: { content: 'Once upon a time there was a ' },
    });
  });
});

describe('tools', () => {
  it('are called, and their results reach the policy', async () => {
    const params = ask('How is the weather in Paris?', { tools: [WEATHER] });
    const first = await chat().create(params);
    expect(finishOf(first)).toBe('tool_calls');
    const message = messageOf(first);
    const call = defined(callsOf(message)[0]);
    expect(message.tool_calls).toMatchObject([{ type: 'function', function: { name: 'get_weather' } }]);
    expect(argumentsOf(call)).toEqual({ city: 'Paris' });
    const messages = [...params.messages, message, result(call, 'sun')];
    expect(textOf(await chat().create({ ...params, messages }))).toBe('It is sunny in Paris.');
    await floe.checkOneTrace();
  });

  it('are called in parallel from a stream', async () => {
    const params = ask('How is the weather in Paris and Oslo?', { tools: [WEATHER] });
    const message = await chat().stream(params).finalMessage();
    const calls = callsOf(message);
    expect(calls.map(argumentsOf)).toEqual([{ city: 'Paris' }, { city: 'Oslo' }]);
    expect(new Set(calls.map(({ id }) => id)).size).toBe(2);
    const [paris, oslo] = calls;
    const messages = [...params.messages, message, result(defined(paris), 'sun'), result(defined(oslo), 'rain')];
    const second = await chat()
      .stream({ ...params, messages })
      .finalChatCompletion();
    expect(textOf(second)).toBe('Sun in Paris, rain in Oslo.');
    await checkContexts();
  });

  it.each([false, true])('are run by the tool runner of the SDK (stream: %s)', async (stream) => {
    const ran: string[] = [];
    const tool = zodFunction({
      name: 'get_weather',
      parameters: Weather,
      function: ({ city }) => {
        ran.push(city);
        return city === 'Oslo' ? 'rain' : 'sun';
      },
    });
    const params = { ...ask('How is the weather in Paris and Oslo?'), tools: [tool] };
    const runner = stream ? chat().runTools({ ...params, stream }) : chat().runTools({ ...params, stream });
    expect((await runner.finalContent())?.trim()).toBe('Sun in Paris, rain in Oslo.');
    expect(ran).toEqual(['Paris', 'Oslo']);
    expect(runner.allChatCompletions()).toHaveLength(2);
    await checkContexts();
  });

  it.each(['required' as const, { type: 'function' as const, function: { name: 'save_note' } }])(
    'can be forced: %o',
    async (tool_choice) => {
      const completion = await chat().create(ask('Please remember milk.', { tools: [NOTE], tool_choice }));
      expect(finishOf(completion)).toBe('tool_calls');
      expect(callsOf(messageOf(completion)).map(argumentsOf)[0]).toEqual({ text: 'milk' });
    },
  );

  it('are called one at a time when parallel calls are disabled', async () => {
    const params = ask('How is the weather in Paris and Oslo?', { tools: [WEATHER], parallel_tool_calls: false });
    expect(messageOf(await chat().create(params)).tool_calls).toHaveLength(1);
  });
});

describe('reasoning', () => {
  it('is returned and can be sent back', async () => {
    const params = ask('A riddle: tall when young, short when old?', { reasoning_effort: 'high' });
    const message = messageOf(await chat().create(params));
    expect(message.reasoning_content).toBe(floe.last.message.reasoning_content);
    expect(message.reasoning_content).toContain('It melts.');
    const messages = [...params.messages, message, user('Really?')];
    expect(textOf(await chat().create({ ...params, messages }))).toBe('Still a candle.');
    await floe.checkOneTrace();
  });

  it('is streamed in pieces', async () => {
    let reasoning = '';
    for await (const { choices } of await chat().create({ ...ask('A riddle!'), stream: true })) {
      reasoning += Delta.parse(choices[0]?.delta ?? {}).reasoning_content ?? '';
    }
    expect(reasoning).toBe(floe.last.message.reasoning_content);
  });
});

it('structured output is parsed by the SDK', async () => {
  const City = z.object({ city: z.string(), population: z.number() });
  const params = ask('Tell me the facts about Paris.', { response_format: zodResponseFormat(City, 'city') });
  expect((await chat().parse(params)).choices[0]?.message.parsed).toEqual(CITY);
  const streamed = await chat().stream(params).finalChatCompletion();
  expect(streamed.choices[0]?.message.parsed).toEqual(CITY);
  const loose = await chat().create({ ...params, response_format: { type: 'json_object' } });
  expect(JSON.parse(defined(textOf(loose)))).toEqual({ name: 'Paris' });
});

it('images reach the policy', async () => {
  const content = [{ type: 'text' as const, text: 'How many in the picture?' }, png];
  expect(textOf(await chat().create(ask(content)))).toBe('One picture.');
  expect(textOf(await chat().create(ask([...content, png])))).toBe('Two pictures.');
});

describe('errors', () => {
  it.each([false, true])('name a model that does not exist (stream: %s)', async (stream) => {
    const error = await chat()
      .create({ ...ask('Hello', { model: 'gpt' }), stream })
      .catch((thrown) => thrown);
    expect(error).toBeInstanceOf(OpenAI.NotFoundError);
    expect(error).toMatchObject({ status: 404, code: 'not_found', type: 'invalid_request_error' });
    expect(error.message).toContain('no such model: gpt');
  });

  it('report an invalid session key', async () => {
    const sent = chat({ baseURL: `${floe.proxy.origin}/v1`, apiKey: 'wrong' }).create(ask('Hello'));
    await expect(sent).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
  });

  it('report that the session has ended', async () => {
    await floe.session.close();
    await expect(chat().create(ask('Hello'))).rejects.toMatchObject({ status: 410, code: 'session_closed' });
  });

  it.each([false, true])('report a prompt that is too long (stream: %s)', async (stream) => {
    const error = await chat()
      .create({ ...ask(TOO_LONG), stream })
      .catch((thrown) => thrown);
    expect(error).toBeInstanceOf(OpenAI.BadRequestError);
    expect(error.code).toBe('context_length_exceeded');
    expect(error.message).toContain('maximum context length');
  });

  it.each([false, true])('of the engine are retried by the SDK (stream: %s)', async (stream) => {
    floe.sim.setFaults([{ kind: 'http_500', times: 1 }]);
    const retrying = chat({ maxRetries: 2 });
    const completion = await (stream
      ? retrying.stream(ask('Hello')).finalChatCompletion()
      : retrying.create(ask('Hello')));
    expect(finishOf(completion)).toBe('stop');
    expect(floe.session.requests).toBe(2);
  });

  it('of a busy engine do not reach the client, because the proxy retries the call', async () => {
    floe.sim.setFaults([{ kind: 'http_429', times: 1 }]);
    expect(finishOf(await chat().create(ask('Hello')))).toBe('stop');
    expect(floe.session.requests).toBe(1);
  });

  it('report more concurrent calls than a session may have', async () => {
    await fetch(`${floe.sim.url}/pause?mode=wait`, { method: 'POST' });
    const calls = Array.from({ length: 64 }, (_, number) => chat().create(ask(`Hello ${number}`)));
    const answered = Promise.allSettled(calls);
    await expect.poll(() => floe.engines.info()[0]?.inflight, { timeout: 30_000 }).toBe(64);
    await expect(chat().create(ask('Hello'))).rejects.toBeInstanceOf(OpenAI.RateLimitError);
    await fetch(`${floe.sim.url}/resume`, { method: 'POST' });
    expect((await answered).filter(({ status }) => status === 'fulfilled')).toHaveLength(64);
  });
});

it('the proxy lists the model of the session', async () => {
  const ids: string[] = [];
  for await (const { id } of client().models.list()) ids.push(id);
  expect(ids).toEqual(['policy']);
  expect(await client().models.retrieve('policy')).toMatchObject({ object: 'model', id: 'policy' });
  await expect(client().models.retrieve('gpt')).rejects.toBeInstanceOf(OpenAI.NotFoundError);
});
