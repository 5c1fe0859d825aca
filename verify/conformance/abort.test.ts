// Tests clients that abort a streamed reply in the middle and then request another reply.
import Anthropic from '@anthropic-ai/sdk';
import { GoogleGenAI } from '@google/genai';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Floe, startFloe } from './floe.ts';
import { MODE_SIM } from './mode.ts';

let floe: Floe;
beforeAll(async () => {
  floe = await startFloe({ sim: { ...MODE_SIM, tokenDelayMs: 5 }, proxy: { abandonGraceMs: 0 } });
});
afterAll(() => floe.close());

const messages = (content: string) => [{ role: 'user' as const, content }];

/**
 * Functions that stream a story with one vendor's SDK, abort the stream at its first piece of text, and resolve when the SDK has reported
 * the abort.
 */
const ABORT: Readonly<Record<string, (content: string) => Promise<void>>> = {
  async anthropic(content) {
    const client = new Anthropic({ baseURL: floe.baseUrl, apiKey: floe.key });
    const stream = client.messages.stream({ model: 'policy', max_tokens: 900, messages: messages(content) });
    stream.on('text', () => stream.abort());
    await expect(stream.finalMessage()).rejects.toBeInstanceOf(Anthropic.APIUserAbortError);
  },
  async openai_chat(content) {
    const client = new OpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey: floe.key });
    const stream = client.chat.completions.stream({ model: 'policy', messages: messages(content) });
    stream.on('content', () => stream.abort());
    await expect(stream.finalChatCompletion()).rejects.toBeInstanceOf(OpenAI.APIUserAbortError);
  },
  async openai_responses(content) {
    const client = new OpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey: floe.key });
    const stream = client.responses.stream({ model: 'policy', input: content });
    stream.on('response.output_text.delta', () => stream.abort());
    await expect(stream.finalResponse()).rejects.toBeInstanceOf(OpenAI.APIUserAbortError);
  },
  async gemini(contents) {
    const client = new GoogleGenAI({ apiKey: floe.key, httpOptions: { baseUrl: floe.baseUrl } });
    const controller = new AbortController();
    const config = { abortSignal: controller.signal };
    const read = async () => {
      const stream = await client.models.generateContentStream({ model: 'policy', contents, config });
      for await (const { text } of stream) if (text) controller.abort();
    };
    await expect(read()).rejects.toMatchObject({ name: 'AbortError' });
  },
};

it.each(Object.entries(ABORT))('%s: an aborted stream ends the engine call and records nothing', async (_, abort) => {
  await floe.renew();
  await abort('Tell me a story');
  const aborted = () => floe.ledger().map(({ aborted_at }) => aborted_at !== null);
  await expect.poll(aborted, { timeout: 30_000 }).toEqual([true]);
  expect(floe.session.completions()).toEqual([]);
  const client = new OpenAI({ baseURL: `${floe.baseUrl}/v1`, apiKey: floe.key });
  await client.chat.completions.create({ model: 'policy', messages: messages('A story again') });
  const { audit } = await floe.check();
  expect(audit.completions).toMatchObject({ recorded: 1, trained: 1 });
});
