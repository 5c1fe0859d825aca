// Tests the openai SDK against the proxy's `openai_responses` dialect.
import OpenAI, { type ClientOptions } from 'openai';
import { zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
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

type Params = Omit<OpenAI.Responses.ResponseCreateParamsNonStreaming, 'stream' | 'truncation'>;
type Item = OpenAI.Responses.ResponseInputItem;
type Output = OpenAI.Responses.ResponseInputItem.FunctionCallOutput['output'];
type FunctionCall = OpenAI.Responses.ResponseFunctionToolCall;
type Response = OpenAI.Responses.Response;

const client = (over: ClientOptions = {}) =>
  new OpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey: floe.key, maxRetries: 0, ...over });
const responses = (over?: ClientOptions) => client(over).responses;
const ask = <Over extends Partial<Params>>(input: string | Item[], over?: Over) => ({
  model: 'policy',
  input,
  ...over,
});
const Weather = z.object({ city: z.string() });
const WEATHER = zodResponsesFunction({ name: 'get_weather', parameters: Weather });
const NOTE: OpenAI.Responses.FunctionTool = {
  type: 'function',
  name: 'save_note',
  parameters: { type: 'object', properties: {} },
  strict: false,
};
const png: OpenAI.Responses.ResponseInputImage = {
  type: 'input_image',
  detail: 'auto',
  image_url: `data:image/png;base64,${PNG}`,
};
const user = (content: OpenAI.Responses.EasyInputMessage['content']): Item => ({ role: 'user', content });
const result = ({ call_id }: FunctionCall, output: Output): Item => ({
  type: 'function_call_output',
  call_id,
  output,
});
const callsOf = ({ output }: Response): FunctionCall[] => output.filter((item) => item.type === 'function_call');
const cityOf = ({ arguments: text }: FunctionCall) => Weather.parse(JSON.parse(text)).city;
/** Returns the output items of a response that are sent back as input items of the next request. */
const itemsOf = ({ output }: Response): Item[] => output.filter(isInput);
/** Whether an output item may be sent back as input. Calls of tools that run at the vendor may not; floe never returns such calls. */
function isInput(item: OpenAI.Responses.ResponseOutputItem): item is OpenAI.Responses.ResponseOutputItem & Item {
  return ['reasoning', 'message', 'function_call'].includes(item.type);
}
const referencesTo = ({ output }: Response): Item[] =>
  output.map((item) => ({ type: 'item_reference', id: defined('id' in item ? item.id : undefined) }));
/** Returns the text of a response, without the line breaks that the simulated policy writes between thinking, text and calls. */
const textOf = (response: Response) => response.output_text.trim();

describe('a response', () => {
  it('has the usage that the engine counted', async () => {
    const response = await responses().create(ask('Hello', { instructions: 'Be brief.' }));
    expect(response).toMatchObject({ object: 'response', status: 'completed', model: 'policy', error: null });
    expect(response.output_text).toBe(floe.last.message.content);
    expect(response.usage?.input_tokens).toBe(floe.last.promptIds.length);
    expect(response.usage?.output_tokens).toBe(floe.last.responseIds.length);
  });

  it('is the same when it is streamed and the SDK joins the pieces', async () => {
    const stream = responses().stream(ask('Tell me a story'));
    let text = '';
    stream.on('response.output_text.delta', ({ delta }) => {
      text += delta;
    });
    const response = await stream.finalResponse();
    expect(text).toBe(floe.last.message.content);
    expect(response).toMatchObject({ status: 'completed', output_text: text });
    expect(response.usage?.output_tokens).toBe(floe.last.responseIds.length);
  });

  it('states the reason when it was cut at a limit', async () => {
    const cut = await responses().create(ask('Tell me a story', { max_output_tokens: 16 }));
    expect(cut).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } });
    expect(cut.usage?.output_tokens).toBe(16);
  });
});

describe('tools', () => {
  it.each([
    ['all items', (response: Response) => itemsOf(response)],
    ['references to all items', referencesTo],
  ])('are called, and the result is fed back with %s', async (_, given) => {
    const input = [user('How is the weather in Paris?')];
    const first = await responses().create(ask(input, { tools: [WEATHER] }));
    expect(first.output.map(({ type }) => type)).toEqual(['reasoning', 'message', 'function_call']);
    const call = defined(callsOf(first)[0]);
    expect(JSON.parse(call.arguments)).toEqual({ city: 'Paris' });
    const next = ask([...input, ...given(first), result(call, 'sun')], { tools: [WEATHER] });
    const { input_tokens } = await responses().inputTokens.count(next);
    expect(textOf(await responses().create(next))).toBe('It is sunny in Paris.');
    expect(floe.last.promptIds).toHaveLength(input_tokens);
    await floe.checkOneTrace();
  });

  it('are called in parallel from a stream, and their results refer to the response by its id', async () => {
    const params = ask('How is the weather in Paris and Oslo?', { tools: [WEATHER] });
    const first = await responses().stream(params).finalResponse();
    const calls = callsOf(first);
    expect(calls.map(cityOf)).toEqual(['Paris', 'Oslo']);
    const second = await responses()
      .stream({
        ...params,
        previous_response_id: first.id,
        input: calls.map((call) => result(call, cityOf(call) === 'Oslo' ? 'rain' : 'sun')),
      })
      .finalResponse();
    expect(second.previous_response_id).toBe(first.id);
    expect(textOf(second)).toBe('Sun in Paris, rain in Oslo.');
    await floe.checkOneTrace();
  });

  it.each(['required' as const, { type: 'function' as const, name: 'save_note' }])(
    'can be forced: %o',
    async (tool_choice) => {
      const response = await responses().create(ask('Please remember milk.', { tools: [NOTE], tool_choice }));
      expect(callsOf(response)).toMatchObject([
        { name: 'save_note', arguments: '{"text":"milk"}', status: 'completed' },
      ]);
    },
  );

  it('are called one at a time when parallel calls are disabled', async () => {
    const params = ask('How is the weather in Paris and Oslo?', { tools: [WEATHER], parallel_tool_calls: false });
    expect(callsOf(await responses().create(params))).toHaveLength(1);
  });

  it('accept free text as their input', async () => {
    const tools = [{ type: 'custom' as const, name: 'save_note', description: 'Any text.' }];
    const params = ask('Please remember milk.', { tools, tool_choice: 'required' as const });
    const [call] = (await responses().create(params)).output;
    if (call?.type !== 'custom_tool_call') throw new Error('the reply has no call of the custom tool');
    expect(call).toMatchObject({ type: 'custom_tool_call', name: 'save_note' });
    const streamed = await responses().stream(params).finalResponse();
    expect(streamed.output[0]).toMatchObject({ type: 'custom_tool_call', input: call.input });
  });
});

describe('reasoning', () => {
  const riddle = user('A riddle: tall when young, short when old?');

  const sealed: Partial<Params> = { store: false, include: ['reasoning.encrypted_content'] };
  it.each([
    ['items', {}],
    ['sealed items', sealed],
  ])('is returned and can be sent back as %s', async (_, over) => {
    const reasoningParams = { effort: 'high' as const, summary: 'auto' as const };
    const params = ask([riddle], { reasoning: reasoningParams, ...over });
    const first = await responses().stream(params).finalResponse();
    const [reasoning] = first.output;
    if (reasoning?.type !== 'reasoning') throw new Error('the reply begins with no reasoning');
    expect(reasoning.summary.map(({ text }) => text).join('')).toBe(floe.last.message.reasoning_content);
    const input = [riddle, ...itemsOf(first), user('Really?')];
    expect(textOf(await responses().create({ ...params, input }))).toBe('Still a candle.');
    await floe.checkOneTrace();
  });

  it('is kept under the id of the response', async () => {
    const first = await responses().create(ask('A riddle!'));
    const second = await responses().create(ask('Really?', { previous_response_id: first.id }));
    expect(textOf(second)).toBe('Still a candle.');
    await floe.checkOneTrace();
  });
});

it('structured output is parsed by the SDK', async () => {
  const City = z.object({ city: z.string(), population: z.number() });
  const params = ask('Tell me the facts about Paris.', { text: { format: zodTextFormat(City, 'city') } });
  expect((await responses().parse(params)).output_parsed).toEqual(CITY);
  expect((await responses().stream(params).finalResponse()).output_parsed).toEqual(CITY);
});

it('images reach the policy', async () => {
  const content = [{ type: 'input_text' as const, text: 'How many in the picture?' }, png];
  expect(textOf(await responses().create(ask([user(content)])))).toBe('One picture.');
  expect(textOf(await responses().create(ask([user([...content, png])])))).toBe('Two pictures.');
});

it('images reach the policy from a tool', async () => {
  const input = [user('How is the weather in Paris?')];
  const first = await responses().create(ask(input, { tools: [WEATHER] }));
  const output = [{ type: 'input_text' as const, text: 'A map:' }, png];
  const next = [...input, ...itemsOf(first), result(defined(callsOf(first)[0]), output)];
  expect(textOf(await responses().create(ask(next, { tools: [WEATHER] })))).toBe('The map shows sun.');
});

describe('errors', () => {
  it.each([false, true])('name a model that does not exist (stream: %s)', async (stream) => {
    const error = await responses()
      .create({ ...ask('Hello', { model: 'gpt' }), stream })
      .catch((thrown) => thrown);
    expect(error).toBeInstanceOf(OpenAI.NotFoundError);
    expect(error).toMatchObject({ status: 404, code: 'not_found' });
  });

  it('report an invalid session key', async () => {
    const sent = responses({ baseURL: `${floe.proxy.origin}/v1`, apiKey: 'wrong' }).create(ask('Hello'));
    await expect(sent).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
  });

  it('report that the session has ended', async () => {
    await floe.session.close();
    await expect(responses().create(ask('Hello'))).rejects.toMatchObject({ status: 410, code: 'session_closed' });
  });

  it('report a response that the session does not have', async () => {
    const sent = responses().create(ask('Hello', { previous_response_id: 'resp_cpl_none' }));
    await expect(sent).rejects.toMatchObject({ status: 400, message: expect.stringContaining('previous_response_id') });
  });

  it.each([false, true])('report a prompt that is too long (stream: %s)', async (stream) => {
    const error = await responses()
      .create({ ...ask(TOO_LONG), stream })
      .catch((thrown) => thrown);
    expect(error).toBeInstanceOf(OpenAI.BadRequestError);
    expect(error.code).toBe('context_length_exceeded');
  });

  it.each([false, true])('of the engine are retried by the SDK (stream: %s)', async (stream) => {
    floe.sim.setFaults([{ kind: 'http_500', times: 1 }]);
    const retrying = responses({ maxRetries: 2 });
    const { status } = await (stream ? retrying.stream(ask('Hello')).finalResponse() : retrying.create(ask('Hello')));
    expect(status).toBe('completed');
    expect(floe.session.requests).toBe(2);
  });

  it('of a busy engine do not reach the client, because the proxy retries the call', async () => {
    floe.sim.setFaults([{ kind: 'http_429', times: 1 }]);
    expect((await responses().create(ask('Hello'))).status).toBe('completed');
    expect(floe.session.requests).toBe(1);
  });
});

it('the proxy counts the tokens of a prompt', async () => {
  const params = ask('How is the weather?', { tools: [WEATHER], instructions: 'Be brief.' });
  const { input_tokens } = await responses().inputTokens.count(params);
  await responses().create(params);
  expect(floe.last.promptIds).toHaveLength(input_tokens);
});
