// Tests OpenAI's Agents SDK against the proxy's `openai_responses` and `openai_chat` dialects.
import {
  Agent,
  type AgentConfiguration,
  MaxTurnsExceededError,
  OpenAIProvider,
  type RunItem,
  Runner,
  tool,
  user,
} from '@openai/agents';
import OpenAI, { type ClientOptions } from 'openai';
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

const City = z.object({ city: z.string(), population: z.number() });
const WEATHER = tool({
  name: 'get_weather',
  description: 'The weather of a city',
  parameters: z.object({ city: z.string() }),
  execute: ({ city }) => (city === 'Oslo' ? 'rain' : 'sun'),
});
const NOTE = tool({
  name: 'save_note',
  description: 'Keeps a note',
  parameters: z.object({ text: z.string() }),
  execute: () => 'saved',
});
const SETTINGS = { name: 'Tester', instructions: 'Be brief.', model: 'policy' };
const agent = (over: Partial<AgentConfiguration> = {}) => new Agent({ ...SETTINGS, ...over });

/** Returns the parsed arguments of all tool calls in an agent run. */
const argumentsIn = (items: readonly RunItem[]) =>
  items.flatMap(({ rawItem }): unknown[] => (rawItem?.type === 'function_call' ? [JSON.parse(rawItem.arguments)] : []));

describe.each([
  { dialect: 'openai_responses', useResponses: true },
  { dialect: 'openai_chat', useResponses: false },
])('$dialect', ({ dialect, useResponses }) => {
  /** Returns a runner for the current session. Its tracing is disabled, because it would send traces of the run to the vendor. */
  const runner = (over: ClientOptions = {}) => {
    const openAIClient = new OpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey: floe.key, maxRetries: 0, ...over });
    return new Runner({ modelProvider: new OpenAIProvider({ openAIClient, useResponses }), tracingDisabled: true });
  };

  it('runs an agent', async () => {
    const result = await runner().run(agent({ tools: [WEATHER] }), 'How is the weather in Paris and Oslo?');
    expect(result.finalOutput?.trim()).toBe('Sun in Paris, rain in Oslo.');
    expect(argumentsIn(result.newItems)).toEqual([{ city: 'Paris' }, { city: 'Oslo' }]);
    const outputs = result.newItems.flatMap((item) => (item.type === 'tool_call_output_item' ? [item.output] : []));
    expect(outputs).toEqual(['sun', 'rain']);
    expect(result.rawResponses.at(-1)?.usage.outputTokens).toBe(floe.last.responseIds.length);
    expect(floe.session.completions().map((completion) => completion.dialect)).toEqual([dialect, dialect]);
    const { audit } = await floe.check();
    expect(audit).toMatchObject({ exact_context_share: 1, completions: { trained: 2 } });
  });

  it('runs an agent that streams', async () => {
    const result = await runner().run(agent({ tools: [WEATHER] }), 'How is the weather in Paris and Oslo?', {
      stream: true,
    });
    let text = '';
    for await (const piece of result.toTextStream()) text += piece;
    await result.completed;
    expect(result.error).toBeNull();
    expect(text.trim()).toBe('Sun in Paris, rain in Oslo.');
    expect(result.finalOutput?.trim()).toBe(text.trim());
    expect(floe.session.completionCount).toBe(2);
  });

  it('continues from its own history', async () => {
    const riddler = agent();
    const first = await runner().run(riddler, 'A riddle: tall when young, short when old?');
    expect(first.finalOutput?.trim()).toBe('A candle.');
    const second = await runner().run(riddler, [...first.history, user('Really?')]);
    expect(second.finalOutput?.trim()).toBe('Still a candle.');
    // The two turns become one trace only with the Responses API. With chat completions, the Agents SDK does not send reasoning back, so
    // each turn becomes a separate trace.
    if (useResponses) await floe.checkOneTrace();
    const { audit } = await floe.check();
    expect(audit).toMatchObject({ exact_context_share: 1, completions: { recorded: 2, trained: 2 } });
  });

  it('uses a tool that the settings force', async () => {
    const forced = agent({ tools: [NOTE], modelSettings: { toolChoice: 'save_note' } });
    const { newItems, finalOutput } = await runner().run(forced, 'Please remember milk.');
    expect(argumentsIn(newItems)[0]).toEqual({ text: 'milk' });
    expect(finalOutput?.trim()).toBe('Noted.');
  });

  it('returns an answer with the requested structure', async () => {
    const expert = new Agent({ ...SETTINGS, outputType: City });
    const { finalOutput } = await runner().run(expert, 'Tell me the facts about Paris.');
    expect(finalOutput).toEqual(CITY);
  });

  it('sends an image to the policy', async () => {
    const question = user([
      { type: 'input_text', text: 'How many in the picture?' },
      { type: 'input_image', image: `data:image/png;base64,${PNG}` },
    ]);
    const { finalOutput } = await runner().run(agent(), [question]);
    expect(finalOutput).toBe('One picture.');
  });

  it('stops at its own limit on turns', async () => {
    const sent = runner().run(agent({ tools: [WEATHER] }), 'How is the weather in Paris?', { maxTurns: 1 });
    await expect(sent).rejects.toBeInstanceOf(MaxTurnsExceededError);
    expect(floe.session.completionCount).toBe(1);
  });

  it("throws the client's errors", async () => {
    const unknown = runner().run(agent({ model: 'gpt' }), 'Hello');
    await expect(unknown).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    await expect(runner().run(agent(), TOO_LONG)).rejects.toMatchObject({
      status: 400,
      code: 'context_length_exceeded',
    });
    await floe.session.close();
    await expect(runner().run(agent(), 'Hello')).rejects.toMatchObject({ status: 410 });
  });

  it('retries a call that failed at the engine', async () => {
    floe.sim.setFaults([{ kind: 'http_500', times: 1 }]);
    await runner({ maxRetries: 1 }).run(agent(), 'Hello');
    expect(floe.session.requests).toBe(2);
  });
});

it('openai_responses: a run continues from the id of the last response', async () => {
  const openAIClient = new OpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey: floe.key });
  const runner = new Runner({ modelProvider: new OpenAIProvider({ openAIClient }), tracingDisabled: true });
  const first = await runner.run(agent(), 'A riddle!');
  const { finalOutput } = await runner.run(agent(), 'Really?', {
    previousResponseId: defined(first.lastResponseId),
  });
  expect(finalOutput?.trim()).toBe('Still a candle.');
  await floe.checkOneTrace();
});
