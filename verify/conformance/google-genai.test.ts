// Tests @google/genai against the proxy's `gemini` dialect.
import {
  ApiError,
  type CallableTool,
  type Content,
  type ContentListUnion,
  createPartFromBase64,
  type FunctionCall,
  FunctionCallingConfigMode,
  type GenerateContentConfig,
  type GenerateContentResponse,
  GoogleGenAI,
  type HttpOptions,
  type Part,
  type Tool,
  Type,
} from '@google/genai';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { defined, type Floe, PNG, startFloe, TOO_LONG } from './floe.ts';
import { CITY } from './scenarios.ts';

let floe: Floe;
beforeAll(async () => {
  floe = await startFloe();
});
afterEach(() => floe.renew());
afterAll(() => floe.close());

type ClientOptions = HttpOptions & { readonly apiKey?: string };

const client = ({ baseUrl = floe.baseUrl, apiKey = floe.key, ...options }: ClientOptions = {}) =>
  new GoogleGenAI({ apiKey, httpOptions: { baseUrl, ...options } });
const models = (over?: ClientOptions) => client(over).models;
const ask = (contents: ContentListUnion, config: GenerateContentConfig = {}) => ({ model: 'policy', contents, config });
const user = (...parts: Part[]): Content => ({ role: 'user', parts });
const WEATHER: Tool = {
  functionDeclarations: [
    {
      name: 'get_weather',
      description: 'The weather of a city',
      parameters: { type: Type.OBJECT, properties: { city: { type: Type.STRING } }, required: ['city'] },
    },
  ],
};
const NOTE: Tool = {
  functionDeclarations: [
    {
      name: 'save_note',
      parametersJsonSchema: { type: 'object', properties: { text: { type: 'string' } } },
    },
  ],
};
const png = createPartFromBase64(PNG, 'image/png');
const result = ({ id, name }: FunctionCall, output: string): Part => ({
  functionResponse: { ...(id === undefined ? {} : { id }), name: defined(name), response: { output } },
});
/** Returns the content of the first candidate in a response. */
const contentOf = ({ candidates }: GenerateContentResponse) => defined(candidates?.[0]?.content);
const thoughtOf = (response: GenerateContentResponse) =>
  (contentOf(response).parts ?? []).flatMap((part) => (part.thought ? [part.text] : [])).join('');
/** Returns the text of a response, without the line breaks that the simulated policy writes between thinking, text and calls. */
const textOf = (response: GenerateContentResponse) => defined(response.text).trim();

/**
 * Reads a stream to its end. Returns its text, thinking and calls as the SDK's getters return them, all its parts, and the last response.
 */
async function read(stream: AsyncIterable<GenerateContentResponse>) {
  const calls: FunctionCall[] = [];
  const parts: Part[] = [];
  let [text, thought] = ['', ''];
  let last: GenerateContentResponse | undefined;
  for await (const response of stream) {
    text += response.text ?? '';
    thought += thoughtOf(response);
    calls.push(...(response.functionCalls ?? []));
    parts.push(...defined(contentOf(response).parts));
    last = response;
  }
  return { text, thought, calls, parts, last: defined(last) };
}

describe('a reply', () => {
  it('has the usage that the engine counted', async () => {
    const response = await models().generateContent(ask('Hello', { systemInstruction: 'Be brief.' }));
    expect(response.text).toBe(floe.last.message.content);
    expect(response.candidates?.[0]?.finishReason).toBe('STOP');
    expect(response).toMatchObject({ modelVersion: 'policy', responseId: floe.last.completionId });
    expect(response.usageMetadata?.promptTokenCount).toBe(floe.last.promptIds.length);
    expect(response.usageMetadata?.candidatesTokenCount).toBe(floe.last.responseIds.length);
  });

  it('is the same when it is streamed', async () => {
    const { text, last } = await read(await models().generateContentStream(ask('Tell me a story')));
    expect(text).toBe(floe.last.message.content);
    expect(last.candidates?.[0]?.finishReason).toBe('STOP');
    expect(last.usageMetadata?.candidatesTokenCount).toBe(floe.last.responseIds.length);
  });

  it('states the reason when it was cut at a limit', async () => {
    const cut = await models().generateContent(ask('Tell me a story', { maxOutputTokens: 12 }));
    expect(cut.candidates?.[0]?.finishReason).toBe('MAX_TOKENS');
    const stopped = await models().generateContent(ask('Tell me a story', { stopSequences: ['fox'] }));
    expect(stopped.text).toBe('Once upon a time there was a ');
  });
});

describe('tools', () => {
  it('are called, and their results reach the policy', async () => {
    const config = { tools: [WEATHER] };
    const question = user({ text: 'How is the weather in Paris?' });
    const first = await models().generateContent(ask([question], config));
    const call = defined(first.functionCalls?.[0]);
    expect(call).toMatchObject({ name: 'get_weather', args: { city: 'Paris' } });
    const contents = [question, contentOf(first), user(result(call, 'sun'))];
    expect(textOf(await models().generateContent(ask(contents, config)))).toBe('It is sunny in Paris.');
    await floe.checkOneTrace();
  });

  it('are called in parallel from a stream', async () => {
    const config = { tools: [WEATHER] };
    const question = user({ text: 'How is the weather in Paris and Oslo?' });
    const { calls, parts } = await read(await models().generateContentStream(ask([question], config)));
    expect(calls.map(({ args }) => args)).toEqual([{ city: 'Paris' }, { city: 'Oslo' }]);
    const [paris, oslo] = calls;
    const contents = [
      question,
      { role: 'model', parts },
      user(result(defined(paris), 'sun'), result(defined(oslo), 'rain')),
    ];
    const { text } = await read(await models().generateContentStream(ask(contents, config)));
    expect(text.trim()).toBe('Sun in Paris, rain in Oslo.');
    await floe.checkOneTrace();
  });

  it.each([false, true])('are run by the SDK (stream: %s)', async (stream) => {
    const ran: unknown[] = [];
    const tool: CallableTool = {
      tool: async () => WEATHER,
      callTool: async (calls) =>
        calls.map((call) => {
          ran.push(call.args?.city);
          return result(call, call.args?.city === 'Oslo' ? 'rain' : 'sun');
        }),
    };
    const request = ask('How is the weather in Paris and Oslo?', { tools: [tool] });
    const text = stream
      ? (await read(await models().generateContentStream(request))).text
      : (await models().generateContent(request)).text;
    expect(text?.trim()).toBe('Sun in Paris, rain in Oslo.');
    expect(ran).toEqual(['Paris', 'Oslo']);
    await floe.checkOneTrace();
  });

  it.each([{}, { allowedFunctionNames: ['save_note'] }])('can be forced: %o', async (over) => {
    const toolConfig = { functionCallingConfig: { mode: FunctionCallingConfigMode.ANY, ...over } };
    const request = ask('Please remember milk.', { tools: [NOTE], toolConfig });
    const { functionCalls } = await models().generateContent(request);
    expect(functionCalls).toMatchObject([{ name: 'save_note', args: { text: 'milk' } }]);
  });
});

describe('thinking', () => {
  it('is returned and can be sent back', async () => {
    const config = { thinkingConfig: { includeThoughts: true, thinkingBudget: 1024 } };
    const question = user({ text: 'A riddle: tall when young, short when old?' });
    const first = await models().generateContent(ask([question], config));
    expect(thoughtOf(first)).toBe(floe.last.message.reasoning_content);
    expect(textOf(first)).toBe('A candle.');
    const contents = [question, contentOf(first), user({ text: 'Really?' })];
    expect(textOf(await models().generateContent(ask(contents, config)))).toBe('Still a candle.');
    await floe.checkOneTrace();
  });

  it.each([false, true])('is kept by a chat of the SDK (stream: %s)', async (stream) => {
    const chat = client().chats.create({ model: 'policy' });
    const send = async (message: string) =>
      stream
        ? (await read(await chat.sendMessageStream({ message }))).text
        : (await chat.sendMessage({ message })).text;
    expect((await send('A riddle!'))?.trim()).toBe('A candle.');
    expect((await send('Really?'))?.trim()).toBe('Still a candle.');
    await floe.checkOneTrace();
  });
});

it('structured output has the requested form', async () => {
  const request = (config: GenerateContentConfig) =>
    ask('Tell me the facts about Paris.', { responseMimeType: 'application/json', ...config });
  const json = { type: 'object', properties: { city: { type: 'string' }, population: { type: 'number' } } };
  const required = ['city', 'population'];
  const first = await models().generateContent(request({ responseJsonSchema: { ...json, required } }));
  expect(JSON.parse(defined(first.text))).toEqual(CITY);
  const properties = { city: { type: Type.STRING }, population: { type: Type.NUMBER } };
  const schema = { type: Type.OBJECT, properties, required };
  const { text } = await read(await models().generateContentStream(request({ responseSchema: schema })));
  expect(JSON.parse(text)).toEqual(CITY);
});

it('images reach the policy', async () => {
  const question = { text: 'How many in the picture?' };
  expect(textOf(await models().generateContent(ask([user(question, png)])))).toBe('One picture.');
  expect(textOf(await models().generateContent(ask([user(question, png, png)])))).toBe('Two pictures.');
});

describe('errors', () => {
  /** Sends a request that is expected to fail, and returns the SDK's error. */
  const failure = async (stream: boolean, request: ReturnType<typeof ask>, over?: ClientOptions): Promise<ApiError> => {
    const sent = stream
      ? models(over).generateContentStream(request).then(read)
      : models(over).generateContent(request);
    try {
      await sent;
    } catch (error) {
      if (error instanceof ApiError) return error;
      throw error;
    }
    throw new Error('the request did not fail');
  };

  it.each([false, true])('name a model that does not exist (stream: %s)', async (stream) => {
    const error = await failure(stream, { ...ask('Hello'), model: 'gemini-pro' });
    expect(error.status).toBe(404);
    expect(JSON.parse(error.message).error).toMatchObject({ status: 'NOT_FOUND', code: 404 });
  });

  it('report an invalid session key', async () => {
    const error = await failure(false, ask('Hello'), { baseUrl: floe.proxy.origin, apiKey: 'wrong' });
    expect(error).toMatchObject({ name: 'ApiError', status: 401 });
  });

  it('report that the session has ended', async () => {
    await floe.session.close();
    expect(await failure(false, ask('Hello'))).toMatchObject({ name: 'ApiError', status: 410 });
  });

  it.each([false, true])('report a prompt that is too long (stream: %s)', async (stream) => {
    const error = await failure(stream, ask(TOO_LONG));
    expect(error).toMatchObject({ name: 'ApiError', status: 400 });
    expect(JSON.parse(error.message).error.status).toBe('INVALID_ARGUMENT');
  });

  it.each([false, true])('of the engine are retried by the SDK (stream: %s)', async (stream) => {
    floe.sim.setFaults([{ kind: 'http_500', times: 1 }]);
    const retryOptions = { attempts: 3, initialDelay: 0.1 };
    const retrying = models({ retryOptions });
    await (stream ? retrying.generateContentStream(ask('Hello')).then(read) : retrying.generateContent(ask('Hello')));
    expect(floe.session.requests).toBe(2);
  });

  it('of a busy engine do not reach the client, because the proxy retries the call', async () => {
    floe.sim.setFaults([{ kind: 'http_429', times: 1 }]);
    expect(textOf(await models().generateContent(ask('Hello')))).not.toBe('');
    expect(floe.session.requests).toBe(1);
  });
});

it('the proxy counts the tokens of a prompt', async () => {
  const { totalTokens } = await models().countTokens({ model: 'policy', contents: 'How is the weather?' });
  await models().generateContent(ask('How is the weather?'));
  expect(floe.last.promptIds).toHaveLength(defined(totalTokens));
});

it('the proxy lists the model of the session', async () => {
  const names: unknown[] = [];
  for await (const { name } of await models().list()) names.push(name);
  expect(names).toEqual(['models/policy']);
  expect(await models().get({ model: 'policy' })).toMatchObject({ name: 'models/policy' });
  await expect(models().get({ model: 'gemini-pro' })).rejects.toMatchObject({ status: 404 });
});
