// Vercel's AI SDK, with its provider for each dialect.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import { APICallError, generateObject, generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { PNG, startFloe, TOO_LONG } from './floe.mjs';
import { CITY } from './scenarios.mjs';

let floe;
beforeAll(async () => {
  floe = await startFloe();
});
afterEach(() => floe.renew());
afterAll(() => floe.close());

const openai = (apiKey) => createOpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey });

/** `keepsReasoning`: whether the provider sends thinking back. */
const DIALECTS = [
  {
    dialect: 'anthropic',
    keepsReasoning: true,
    model: (id, apiKey) => createAnthropic({ baseURL: `${floe.baseUrl}/v1`, apiKey })(id),
  },
  { dialect: 'openai_chat', keepsReasoning: false, model: (id, apiKey) => openai(apiKey).chat(id) },
  { dialect: 'openai_responses', keepsReasoning: true, model: (id, apiKey) => openai(apiKey).responses(id) },
  {
    dialect: 'gemini',
    keepsReasoning: true,
    model: (id, apiKey) => createGoogleGenerativeAI({ baseURL: `${floe.baseUrl}/v1beta`, apiKey })(id),
  },
];

const City = z.object({ city: z.string(), population: z.number() });
const WEATHER = tool({
  description: 'The weather of a city',
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => (city === 'Oslo' ? 'rain' : 'sun'),
});
const NOTE = tool({ inputSchema: z.object({ text: z.string() }) });

describe.each(DIALECTS)('$dialect', ({ dialect, keepsReasoning, model }) => {
  const policy = (id = 'policy') => model(id, floe.key);
  const agent = (over = {}) => ({
    model: policy(),
    tools: { get_weather: WEATHER },
    stopWhen: stepCountIs(5),
    maxRetries: 0,
    system: 'Be brief.',
    prompt: 'How is the weather in Paris and Oslo?',
    ...over,
  });

  /** Two turns are one trace if the framework gave the first one back as it was, and else two, each in its own context. */
  const checkTurns = async () => {
    expect(floe.session.completions().map((completion) => completion.dialect)).toEqual([dialect, dialect]);
    if (keepsReasoning) return await floe.checkOneTrace();
    const { traces, audit } = await floe.check();
    expect(traces).toHaveLength(2);
    expect(audit).toMatchObject({ exact_context_share: 1, links: { exact: 0 } });
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
  };

  it('runs an agent', async () => {
    const result = await generateText(agent());
    expect(result.text.trim()).toBe('Sun in Paris, rain in Oslo.');
    expect(result.finishReason).toBe('stop');
    expect(result.steps[0].finishReason).toBe('tool-calls');
    expect(result.steps[0].toolCalls.map(({ input }) => input)).toEqual([{ city: 'Paris' }, { city: 'Oslo' }]);
    expect(result.steps[0].toolResults.map(({ output }) => output)).toEqual(['sun', 'rain']);
    expect(result.usage.inputTokens).toBe(floe.last.promptIds.length);
    expect(result.usage.outputTokens).toBe(floe.last.responseIds.length);
    await checkTurns();
  });

  it('runs an agent that streams', async () => {
    const result = streamText(agent());
    const kinds = new Set();
    for await (const { type } of result.fullStream) kinds.add(type);
    expect([...kinds]).toEqual(expect.arrayContaining(['tool-call', 'tool-result', 'text-delta', 'finish']));
    expect(kinds).not.toContain('error');
    expect((await result.text).trim()).toBe('Sun in Paris, rain in Oslo.');
    const [first] = await result.steps;
    expect(first.toolCalls.map(({ input }) => input)).toEqual([{ city: 'Paris' }, { city: 'Oslo' }]);
    expect((await result.usage).outputTokens).toBe(floe.last.responseIds.length);
    await checkTurns();
  });

  it('takes reasoning out and gives it back', async () => {
    const question = { role: 'user', content: 'A riddle: tall when young, short when old?' };
    const first = await generateText({ model: policy(), messages: [question] });
    expect(first.text.trim()).toBe('A candle.');
    if (dialect !== 'openai_chat') expect(first.reasoningText.trim()).toBe(floe.last.message.reasoning_content.trim());
    const messages = [question, ...first.response.messages, { role: 'user', content: 'Really?' }];
    const second = streamText({ model: policy(), messages });
    expect((await second.text).trim()).toBe('Still a candle.');
    await checkTurns();
  });

  it.each(['required', { type: 'tool', toolName: 'save_note' }])('can force a tool: %o', async (toolChoice) => {
    const asked = { tools: { save_note: NOTE }, prompt: 'Please remember milk.', toolChoice };
    const { toolCalls } = await generateText({ model: policy(), ...asked });
    expect(toolCalls).toMatchObject([{ toolName: 'save_note', input: { text: 'milk' } }]);
  });

  it('asks for an object', async () => {
    const asked = { model: policy(), prompt: 'Tell me the facts about Paris.' };
    expect((await generateObject({ ...asked, schema: City })).object).toEqual(CITY);
    const streamed = streamText({ ...asked, output: Output.object({ schema: City }) });
    expect(await streamed.output).toEqual(CITY);
  });

  it('shows a picture', async () => {
    const text = { type: 'text', text: 'How many in the picture?' };
    const image = { type: 'image', image: Buffer.from(PNG, 'base64') };
    const messages = [{ role: 'user', content: [text, image] }];
    expect((await generateText({ model: policy(), messages })).text).toBe('One picture.');
  });

  it('tells errors by their status', async () => {
    const fail = (over) => generateText({ model: policy(), maxRetries: 0, ...over }).catch((thrown) => thrown);
    const unknown = await fail({ model: policy('gpt'), prompt: 'Hello' });
    expect(APICallError.isInstance(unknown)).toBe(true);
    expect(unknown).toMatchObject({ statusCode: 404, isRetryable: false });
    expect(unknown.message).toContain('no such model: gpt');
    const long = await fail({ prompt: TOO_LONG });
    expect(long).toMatchObject({ statusCode: 400, isRetryable: false });
    expect(long.message).toContain('maximum context length');
    const wrong = await fail({ model: model('policy', 'wrong'), prompt: 'Hello' });
    expect(wrong).toMatchObject({ statusCode: 400, message: expect.stringContaining('two different keys') });
    await floe.session.close();
    expect(await fail({ prompt: 'Hello' })).toMatchObject({ statusCode: 410, isRetryable: false });
  });

  it('tries again what the engine failed', async () => {
    floe.sim.setFaults([{ kind: 'http_500', times: 1 }]);
    expect((await generateText({ model: policy(), prompt: 'Hello', maxRetries: 1 })).finishReason).toBe('stop');
    expect(floe.session.requests).toBe(2);
  });

  it('is told what cut a reply', async () => {
    const { finishReason } = await generateText({ model: policy(), prompt: 'A story', maxOutputTokens: 16 });
    expect(finishReason).toBe('length');
  });
});

/** By default the Responses provider names the items of earlier replies; with these it sends them. */
const WHOLE_ITEMS = { openai: { store: false, include: ['reasoning.encrypted_content'] } };

describe.each([
  { providerOptions: {}, history: ['item_reference', 'item_reference', 'function_call'] },
  { providerOptions: WHOLE_ITEMS, history: ['reasoning', 'assistant', 'function_call'] },
])('openai_responses, with the settings $providerOptions', ({ providerOptions, history }) => {
  /** What the items of the last request are. */
  let sent;
  const provider = () =>
    createOpenAI({
      baseURL: `${floe.baseUrl}/v1`,
      apiKey: floe.key,
      fetch: (url, init) => {
        sent = JSON.parse(init.body).input.map(({ type, role }) => type ?? role);
        return fetch(url, init);
      },
    });

  it.each(['generates', 'streams'])('is one trace over a tool loop and a next message: %s', async (way) => {
    const messages = [{ role: 'user', content: 'How is the weather in Paris?' }];
    const asked = { model: provider().responses('policy'), providerOptions, maxRetries: 0, system: 'Be brief.' };
    const turn = async () => {
      const params = { ...asked, messages, tools: { get_weather: WEATHER }, stopWhen: stepCountIs(5) };
      const result = way === 'streams' ? streamText(params) : await generateText(params);
      const text = (await result.text).trim();
      messages.push(...(await result.response).messages, { role: 'user', content: 'And tomorrow?' });
      return text;
    };
    expect(await turn()).toBe('It is sunny in Paris.');
    const loop = ['system', 'user', ...history, 'function_call_output'];
    expect(sent).toEqual(loop);
    expect(await turn()).toBe('There is nothing more to say about the weather.');
    expect(sent.slice(0, loop.length)).toEqual(loop);
    expect(floe.session.completions()).toHaveLength(3);
    await floe.checkOneTrace();
  });
});
