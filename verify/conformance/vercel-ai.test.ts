// Tests Vercel's AI SDK against floe's proxy, with its provider for each API dialect.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import type { DialectName } from '@floe-rl/core/schema';
import {
  APICallError,
  generateObject,
  generateText,
  type LanguageModel,
  type ModelMessage,
  Output,
  stepCountIs,
  streamText,
  tool,
} from 'ai';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { defined, type Floe, PNG, startFloe, TOO_LONG } from './floe.ts';
import { MODE } from './mode.ts';
import { CITY } from './scenarios.ts';

let floe: Floe;
beforeAll(async () => {
  floe = await startFloe();
});
afterEach(() => floe.renew());
afterAll(() => floe.close());

const openai = (apiKey: string) => createOpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey });

type Provider = {
  readonly dialect: DialectName;
  /** Whether the SDK's provider sends the thinking of earlier replies back in later requests. */
  readonly keepsReasoning: boolean;
  readonly model: (id: string, apiKey: string) => LanguageModel;
};

const PROVIDERS: readonly Provider[] = [
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

const Sent = z.object({ input: z.array(z.object({ type: z.string().optional(), role: z.string().optional() })) });
const City = z.object({ city: z.string(), population: z.number() });
const WEATHER = tool({
  description: 'The weather of a city',
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => (city === 'Oslo' ? 'rain' : 'sun'),
});
const NOTE = tool({ inputSchema: z.object({ text: z.string() }) });

describe.each(PROVIDERS)('$dialect', ({ dialect, keepsReasoning, model }) => {
  const policy = (id = 'policy') => model(id, floe.key);
  const agent = () => ({
    model: policy(),
    tools: { get_weather: WEATHER },
    stopWhen: stepCountIs(5),
    maxRetries: 0,
    system: 'Be brief.',
    prompt: 'How is the weather in Paris and Oslo?',
  });

  /**
   * Checks the traces of two turns. In tokens mode, or when the SDK sends thinking back, the two turns must be one trace. In chat mode with an
   * SDK that drops thinking, they must be two traces, each with the context in which its turn was sampled.
   */
  const checkTurns = async () => {
    expect(floe.session.completions().map((completion) => completion.dialect)).toEqual([dialect, dialect]);
    // In tokens mode, the next prompt contains the turn as it was sampled, whatever the SDK sends back.
    if (keepsReasoning || MODE === 'tokens') return await floe.checkOneTrace();
    const { traces, audit } = await floe.check();
    expect(traces).toHaveLength(2);
    expect(audit).toMatchObject({ exact_context_share: 1, links: { exact: 0 } });
    expect(audit.tokens.trained).toBe(audit.tokens.sampled);
  };

  it('runs an agent', async () => {
    const result = await generateText(agent());
    expect(result.text.trim()).toBe('Sun in Paris, rain in Oslo.');
    expect(result.finishReason).toBe('stop');
    expect(result.steps[0]?.finishReason).toBe('tool-calls');
    expect(result.steps[0]?.toolCalls.map(({ input }) => input)).toEqual([{ city: 'Paris' }, { city: 'Oslo' }]);
    expect(result.steps[0]?.toolResults.map(({ output }) => output)).toEqual(['sun', 'rain']);
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
    expect(first?.toolCalls.map(({ input }) => input)).toEqual([{ city: 'Paris' }, { city: 'Oslo' }]);
    expect((await result.usage).outputTokens).toBe(floe.last.responseIds.length);
    await checkTurns();
  });

  it('receives reasoning and sends it back', async () => {
    const question: ModelMessage = { role: 'user', content: 'A riddle: tall when young, short when old?' };
    const first = await generateText({ model: policy(), messages: [question] });
    expect(first.text.trim()).toBe('A candle.');
    if (dialect !== 'openai_chat') {
      expect(first.reasoningText?.trim()).toBe(defined(floe.last.message.reasoning_content).trim());
    }
    const messages: ModelMessage[] = [question, ...first.response.messages, { role: 'user', content: 'Really?' }];
    const second = streamText({ model: policy(), messages });
    expect((await second.text).trim()).toBe('Still a candle.');
    await checkTurns();
  });

  it.each(['required' as const, { type: 'tool' as const, toolName: 'save_note' as const }])(
    'can force a tool: %o',
    async (toolChoice) => {
      const request = { tools: { save_note: NOTE }, prompt: 'Please remember milk.', toolChoice };
      const { toolCalls } = await generateText({ model: policy(), ...request });
      expect(toolCalls).toMatchObject([{ toolName: 'save_note', input: { text: 'milk' } }]);
    },
  );

  it('requests and parses a structured answer', async () => {
    const question = { model: policy(), prompt: 'Tell me the facts about Paris.' };
    expect((await generateObject({ ...question, schema: City })).object).toEqual(CITY);
    const streamed = streamText({ ...question, output: Output.object({ schema: City }) });
    expect(await streamed.output).toEqual(CITY);
  });

  it('sends an image to the policy', async () => {
    const text = { type: 'text' as const, text: 'How many in the picture?' };
    const image = { type: 'image' as const, image: Buffer.from(PNG, 'base64') };
    const messages = [{ role: 'user' as const, content: [text, image] }];
    expect((await generateText({ model: policy(), messages })).text).toBe('One picture.');
  });

  it('reports errors by their status', async () => {
    const fail = async (prompt: string, failing = policy()): Promise<APICallError> => {
      try {
        await generateText({ model: failing, maxRetries: 0, prompt });
      } catch (error) {
        if (APICallError.isInstance(error)) return error;
        throw error;
      }
      throw new Error('the request did not fail');
    };
    const unknown = await fail('Hello', policy('gpt'));
    expect(unknown).toMatchObject({ statusCode: 404, isRetryable: false });
    expect(unknown.message).toContain('no such model: gpt');
    const long = await fail(TOO_LONG);
    expect(long).toMatchObject({ statusCode: 400, isRetryable: false });
    expect(long.message).toContain('maximum context length');
    const wrong = await fail('Hello', model('policy', 'wrong'));
    expect(wrong).toMatchObject({ statusCode: 400, message: expect.stringContaining('two different keys') });
    await floe.session.close();
    expect(await fail('Hello')).toMatchObject({ statusCode: 410, isRetryable: false });
  });

  it('retries a call that failed at the engine', async () => {
    floe.sim.setFaults([{ kind: 'http_500', times: 1 }]);
    expect((await generateText({ model: policy(), prompt: 'Hello', maxRetries: 1 })).finishReason).toBe('stop');
    expect(floe.session.requests).toBe(2);
  });

  it('returns the reason for which a reply was cut', async () => {
    const { finishReason } = await generateText({ model: policy(), prompt: 'A story', maxOutputTokens: 16 });
    expect(finishReason).toBe('length');
  });
});

type ProviderOptions = NonNullable<Parameters<typeof generateText>[0]['providerOptions']>;

/** Options that make the Responses provider send the whole items of earlier replies. By default it refers to these items by id. */
const WHOLE_ITEMS: ProviderOptions = { openai: { store: false, include: ['reasoning.encrypted_content'] } };

describe.each<{ providerOptions: ProviderOptions; history: readonly string[] }>([
  { providerOptions: {}, history: ['item_reference', 'item_reference', 'function_call'] },
  { providerOptions: WHOLE_ITEMS, history: ['reasoning', 'assistant', 'function_call'] },
])('openai_responses, with the settings $providerOptions', ({ providerOptions, history }) => {
  /** For each input item of the last request: its type, or its role when it has no type. */
  let sent: readonly (string | undefined)[] = [];
  const provider = () =>
    createOpenAI({
      baseURL: `${floe.baseUrl}/v1`,
      apiKey: floe.key,
      fetch: (url, init) => {
        const { input } = Sent.parse(JSON.parse(String(init?.body)));
        sent = input.map(({ type, role }) => type ?? role);
        return fetch(url, init);
      },
    });

  it.each(['generates', 'streams'])('returns one trace for a tool loop and a further message: %s', async (way) => {
    const messages: ModelMessage[] = [{ role: 'user', content: 'How is the weather in Paris?' }];
    const params = { model: provider().responses('policy'), providerOptions, maxRetries: 0, system: 'Be brief.' };
    const turn = async () => {
      const call = { ...params, messages, tools: { get_weather: WEATHER }, stopWhen: stepCountIs(5) };
      const result = way === 'streams' ? streamText(call) : await generateText(call);
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
