import { describe, expect, it } from 'vitest';
import type { SimOptions, SimServer } from '../../src/index.ts';
import { TEMPLATE_MODES } from '../../src/template.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';
import { postJson, simStarter, TOOLS, USER } from '../sim-client.ts';
import type { Chunk } from '../sse.ts';

const vocabulary = bundledVocabulary();
const start = simStarter({ scaleOut: true });
const chat_request = { messages: [USER], tools: TOOLS, seed: 5, logprobs: true, top_logprobs: 1 };

type Body = Record<string, unknown> & { choices: { token_ids: number[]; finish_reason: string }[] };

async function sampled(options: SimOptions = {}, chat: object = chat_request) {
  const sim = await start(options);
  const direct = await postJson<Chunk>(`${sim.url}/v1/chat/completions`, chat);
  const rendered = await postJson<Body>(`${sim.url}/v1/chat/completions/render`, chat);
  const generated = await postJson<Body>(`${sim.url}/inference/v1/generate`, rendered.body);
  return { sim, direct: direct.body, response: generated.body };
}

function derender(sim: SimServer, body: object) {
  return postJson<Chunk>(`${sim.url}/v1/chat/completions/derender`, { chat_request, ...body });
}

describe('derendering', () => {
  for (const templateMode of TEMPLATE_MODES) {
    for (const generateLogprobs of ['token_id', 'openai'] as const) {
      it(`${templateMode}, ${generateLogprobs}: gives the message and logprobs that the chat route gives`, async () => {
        const { sim, direct, response } = await sampled({ templateMode, generateLogprobs });
        const { status, body } = await derender(sim, { generate_response: response, prompt_tokens: 7 });
        expect(status).toBe(200);
        const expected = direct.choices[0];
        const choice = body.choices[0];
        expect(body.id).toBe(response.request_id);
        expect(choice?.message.reasoning).toBe(expected?.message.reasoning);
        expect(choice?.message.content).toBe(expected?.message.content);
        expect(choice?.message.tool_calls.map((call) => call.function)).toEqual(
          expected?.message.tool_calls.map((call) => call.function),
        );
        expect(choice?.message.tool_calls).toHaveLength(1);
        // Derendering keeps the reply's finish reason `stop`, even though the message has a tool call.
        expect(choice?.finish_reason).toBe('stop');
        expect(choice?.logprobs?.content.map(({ token, logprob, bytes }) => ({ token, logprob, bytes }))).toEqual(
          expected?.logprobs?.content.map(({ token, logprob, bytes }) => ({ token, logprob, bytes })),
        );
        expect(body.usage).toEqual({
          prompt_tokens: 7,
          completion_tokens: response.choices[0]?.token_ids.length,
          total_tokens: 7 + (response.choices[0]?.token_ids.length ?? 0),
        });
      });
    }
  }

  it('shows the token that ended the turn and a stop string unless derenderEnd is hidden', async () => {
    for (const [chat, end] of [
      [{ messages: [USER], seed: 1 }, '<|im_end|>'],
      [{ messages: [USER], seed: 1, stop: ['to call'] }, 'to call'],
      [{ messages: [USER], seed: 1, stop_token_ids: [vocabulary.encode(' call')[0]] }, ' call'],
    ] as const) {
      const kept = await sampled({}, chat);
      const shown = await derender(kept.sim, { generate_response: kept.response, chat_request: chat });
      const content = kept.direct.choices[0]?.message.content ?? '';
      expect(shown.body.choices[0]?.message.content).toBe(`${content}${end}`);
      const hidden = await derender(await start({ derenderEnd: 'hidden' }), {
        generate_response: kept.response,
        chat_request: chat,
      });
      expect(hidden.body.choices[0]?.message.content).toBe(content);
      expect(hidden.body.choices[0]?.stop_reason).toEqual(kept.direct.choices[0]?.stop_reason);
    }
  });

  it.each([1, 3, 1_000])('shows in chunks of %i ids what a stream of the chat route shows', async (size) => {
    const { sim, direct, response } = await sampled();
    const ids = response.choices[0]?.token_ids ?? [];
    let stream_state: unknown = null;
    const shown = { reasoning: '', content: '', arguments: '' };
    for (let at = 0; at < ids.length; at += size) {
      const finish_reason = at + size >= ids.length ? 'stop' : null;
      const choices = [{ index: 0, token_ids: ids.slice(at, at + size), finish_reason }];
      const fields = { stream: true, prompt_token_ids: [], generate_chunk: { choices }, stream_state };
      const { status, body } = await derender(sim, fields);
      expect(status).toBe(200);
      type Delta = { reasoning?: string; content?: string; tool_calls?: { function: { arguments?: string } }[] };
      const { chunk, ...rest } = body as unknown as { chunk: { choices: { delta: Delta }[] }; stream_state: unknown };
      stream_state = rest.stream_state;
      const { reasoning = '', content = '', tool_calls = [] } = chunk.choices[0]?.delta ?? {};
      shown.reasoning += reasoning;
      shown.content += content;
      for (const call of tool_calls) shown.arguments += call.function.arguments ?? '';
    }
    const message = direct.choices[0]?.message;
    expect(shown.reasoning).toBe(message?.reasoning);
    expect(shown.content.trim()).toBe((message?.content ?? '').trim());
    expect(shown.arguments).toBe(message?.tool_calls[0]?.function.arguments);
  });

  it('refuses chunks when the server has no parser for streams', async () => {
    const { status } = await derender(await start({ derenderStream: false }), { stream: true });
    expect(status).toBe(501);
  });

  it('accepts a reply that was cut and arbitrary ids', async () => {
    const { sim, response } = await sampled();
    const ids = response.choices[0]?.token_ids ?? [];
    const cut = { ...response, choices: [{ index: 0, token_ids: ids.slice(0, -6), finish_reason: 'length' }] };
    const { body } = await derender(sim, { generate_response: cut });
    expect(body.choices[0]?.message).not.toHaveProperty('tool_calls');
    expect(body.choices[0]?.message.content).toContain('<tool_call>');
    expect(body.choices[0]?.finish_reason).toBe('length');
    const odd = { request_id: 'x', choices: [{ index: 0, token_ids: vocabulary.encode('héllo 👩‍👩‍👧') }] };
    expect((await derender(sim, { generate_response: odd })).body.choices[0]?.message.content).toBe('héllo 👩‍👩‍👧');
  });

  const good = { request_id: 'r', choices: [{ index: 0, token_ids: [5], finish_reason: 'stop' }] };
  it.each([
    ['no response', {}, 400, /generate_response/],
    ['no choice', { generate_response: { choices: [] } }, 400, /choices/],
    ['no ids', { generate_response: { choices: [{ index: 0, token_ids: [] }] } }, 400, /empty or null token_ids/],
    ['null ids', { generate_response: { choices: [{ index: 0, token_ids: null }] } }, 400, /empty or null token_ids/],
    ['invalid ids', { generate_response: { choices: [{ index: 0, token_ids: [1e6] }] } }, 400, /vocabulary/],
    ['text', { generate_response: { ...good, output_mode: 'text' } }, 400, /output_mode/],
    ['no chat request', { generate_response: good, chat_request: null }, 400, /chat_request is required/],
    ['a chat request without messages', { generate_response: good, chat_request: {} }, 400, /messages/],
    ['another model', { generate_response: good, model: 'other' }, 404, /does not exist/],
    [
      'a chunk without the ids of its prompt',
      { stream: true, generate_chunk: { choices: [] } },
      400,
      /prompt_token_ids/,
    ],
    [
      'a chunk of an unknown id',
      { stream: true, prompt_token_ids: [], generate_chunk: { choices: [{ index: 0, token_ids: [999_999] }] } },
      400,
      /out of vocabulary/,
    ],
    [
      'logprobs of an unknown id',
      { generate_response: { choices: [{ index: 0, token_ids: [5], logprobs: { content: [{ logprob: 0 }] } }] } },
      400,
      /logprobs/,
    ],
  ])('refuses %s', async (_, fields, expected, message) => {
    const { status, body } = await derender(await start(), fields);
    expect(status).toBe(expected);
    expect(body.error?.message).toMatch(message);
  });
});
