import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { SimServer } from '../../src/index.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';
import { postJson, simStarter, TOOLS, USER } from '../sim-client.ts';
import { type Chunk, events, post } from '../sse.ts';

const vocabulary = bundledVocabulary();
const start = simStarter({ scaleOut: true });

type Entry = { token_id: number; logprob: number; rank: number | null; token: string; top_logprobs: Entry[] };
type Generated = {
  request_id: string;
  model: string;
  output_mode: string;
  prompt_token_ids?: number[];
  usage: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details: { cached_tokens: number } };
  choices: {
    index: number;
    token_ids: number[] | null;
    text?: string;
    logprobs: { content: Entry[] } | null;
    finish_reason: string | null;
    stop_reason?: string | number | null;
    weight_versions: { version: string; start: number; end: number }[] | null;
  }[];
  error?: { message: string; param: string | null };
};
type Rendered = { token_ids: number[]; sampling_params: Record<string, unknown>; request_id: string };

const chatBody = { messages: [USER], tools: TOOLS, seed: 5, logprobs: true };

async function render(sim: SimServer, body: object = chatBody): Promise<Rendered> {
  const { status, body: rendered } = await postJson<Rendered>(`${sim.url}/v1/chat/completions/render`, body);
  expect(status).toBe(200);
  return rendered;
}

function generate(sim: SimServer, body: object, headers?: Record<string, string>) {
  return postJson<Generated>(`${sim.url}/inference/v1/generate`, body, headers);
}

async function stream(sim: SimServer, body: object): Promise<Generated[]> {
  const response = await post(`${sim.url}/inference/v1/generate`, { ...body, stream: true });
  const text = await response.text();
  expect(text.endsWith('data: [DONE]\n\n')).toBe(true);
  return events(text) as unknown as Generated[];
}

describe('token generation', () => {
  it('exists only with scale-out and needs no rendering first', async () => {
    const without = await start({ scaleOut: false });
    for (const path of ['/inference/v1/generate', '/v1/chat/completions/render', '/v1/chat/completions/derender']) {
      expect((await postJson(`${without.url}${path}`, {})).status).toBe(403);
    }
    const sim = await start();
    const { status, body } = await generate(sim, { token_ids: [9, 8, 7], sampling_params: {} });
    expect(status).toBe(200);
    expect(body.choices[0]?.finish_reason).toBe('stop');
  });

  it('samples the same reply as the chat route, and the ledger records the route', async () => {
    const sim = await start();
    const chat = await postJson<Chunk>(`${sim.url}/v1/chat/completions`, { ...chatBody, return_token_ids: true });
    const rendered = await render(sim);
    expect(rendered.token_ids).toEqual(chat.body.prompt_token_ids);
    const headers = { 'x-request-id': 'mine', 'x-session-id': 'ses' };
    const { body } = await generate(sim, { ...rendered, return_token_ids: true }, headers);
    const [entry] = sim.ledger.entries({ requestId: 'mine' });
    expect(body.request_id).toBe('generate-tokens-mine');
    expect(body.output_mode).toBe('tokens');
    expect(body.prompt_token_ids).toEqual(rendered.token_ids);
    expect(body.choices[0]?.token_ids).toEqual(chat.body.choices[0]?.token_ids);
    expect(body.choices[0]?.token_ids).toEqual(entry?.response_ids);
    expect(body.choices[0]?.logprobs?.content.map(({ logprob }) => logprob)).toEqual(entry?.processed_logprobs);
    expect(body.choices[0]?.logprobs?.content.map(({ token_id: id }) => id)).toEqual(entry?.response_ids);
    expect(body.choices[0]?.weight_versions).toEqual(entry?.version_spans);
    expect(body.choices[0]).not.toHaveProperty('text');
    expect(body.usage.completion_tokens).toBe(entry?.response_ids.length);
    expect(entry).toMatchObject({ endpoint: '/inference/v1/generate', prompt_form: 'ids', session_id: 'ses' });
    expect(sim.ledger.entries()[0]).toMatchObject({ endpoint: '/v1/chat/completions', prompt_form: 'messages' });
    const oracle = sim.oracle(entry?.prompt_ids ?? [], entry?.response_ids ?? [], 'v0', entry?.params as never);
    for (const [i, logprob] of oracle.processed.entries()) {
      expect(entry?.processed_logprobs[i]).toBeCloseTo(logprob, 9);
    }
  });

  it('renders any sampling parameters so that they have the same effect', async () => {
    const sim = await start();
    const params = fc.record(
      {
        temperature: fc.constantFrom(0, 0.5, 1, 1.3),
        top_p: fc.constantFrom(0.5, 1),
        top_k: fc.constantFrom(-1, 0, 3),
        min_p: fc.constantFrom(0, 0.2),
        repetition_penalty: fc.constantFrom(1, 1.2),
        presence_penalty: fc.constantFrom(0, 0.5),
        max_tokens: fc.integer({ min: 1, max: 40 }),
        stop: fc.constantFrom('look', ['.', 'the']),
        stop_token_ids: fc.constantFrom([], [vocabulary.special.thinkClose]),
        ignore_eos: fc.boolean(),
        include_stop_str_in_output: fc.boolean(),
        tool_choice: fc.constantFrom('auto', 'required'),
        seed: fc.integer({ min: 0, max: 1000 }),
        n: fc.constantFrom(1, 2),
      },
      { requiredKeys: ['max_tokens', 'seed'] },
    );
    await fc.assert(
      fc.asyncProperty(params, async (baseRequest) => {
        const body = { ...chatBody, ...baseRequest };
        const headers = { 'x-session-id': JSON.stringify(baseRequest) };
        await post(`${sim.url}/v1/chat/completions`, body, headers);
        await generate(sim, await render(sim, body), headers);
        const entries = sim.ledger.entries({ sessionId: headers['x-session-id'] });
        const of = (form: string) =>
          entries
            .filter((entry) => entry.prompt_form === form)
            .sort((a, b) => a.choice - b.choice)
            .map(({ params, response_ids, processed_logprobs, finish_reason, stop_reason }) => ({
              params,
              response_ids,
              processed_logprobs,
              finish_reason,
              stop_reason,
            }));
        const direct = of('messages');
        expect(direct.length).toBeGreaterThan(0);
        expect(of('ids').slice(0, direct.length)).toEqual(direct);
      }),
      { numRuns: 40, seed: 7 },
    );
  });

  it('streams the same reply, with prompt ids in the first chunk and versions in the last', async () => {
    const sim = await start({ streamInterval: 3 });
    const rendered = await render(sim);
    const whole = (await generate(sim, rendered)).body;
    const chunks = await stream(sim, {
      ...rendered,
      return_token_ids: true,
      stream_options: { include_usage: true },
    });
    const parts = chunks.flatMap(({ choices }) => choices);
    expect(parts.flatMap(({ token_ids }) => token_ids ?? [])).toEqual(whole.choices[0]?.token_ids);
    expect(parts.flatMap(({ logprobs }) => logprobs?.content ?? [])).toEqual(whole.choices[0]?.logprobs?.content);
    expect(chunks.map((chunk) => 'prompt_token_ids' in chunk).indexOf(true)).toBe(0);
    expect(chunks.filter((chunk) => 'prompt_token_ids' in chunk)).toHaveLength(1);
    expect(parts.slice(0, -1).every((part) => part.finish_reason === null && part.weight_versions === null)).toBe(true);
    expect(parts.at(-1)).toMatchObject({ finish_reason: 'stop', weight_versions: whole.choices[0]?.weight_versions });
    expect(chunks.at(-1)?.usage.completion_tokens).toBe(whole.choices[0]?.token_ids?.length);
    expect(chunks.at(-1)?.choices).toEqual([]);
  });

  it('sends logprobs as ids with ranks or in the form of older servers', async () => {
    const baseRequest = { ...chatBody, top_logprobs: 3 };
    const now = await start();
    const entries = (await generate(now, await render(now, baseRequest))).body.choices[0]?.logprobs?.content ?? [];
    for (const { token_id: id, rank, logprob, top_logprobs: top } of entries) {
      expect(top[0]).toMatchObject({ token_id: id, logprob, rank });
      expect(top.length).toBeLessThanOrEqual(3);
      expect(new Set(top.map((other) => other.token_id)).size).toBe(top.length);
    }
    expect(entries.some(({ top_logprobs: top }) => top.length === 3)).toBe(true);
    const older = await start({ generateLogprobs: 'openai' });
    const old = (await generate(older, await render(older, baseRequest))).body.choices[0];
    expect(old?.logprobs?.content.map(({ token }) => token)).toEqual(old?.token_ids?.map((id) => `token_id:${id}`));
    expect(old?.logprobs?.content.map(({ logprob }) => logprob)).toEqual(entries.map(({ logprob }) => logprob));
    const none = (await generate(now, { token_ids: [1], sampling_params: {} })).body.choices[0];
    expect(none?.logprobs).toBeNull();
  });

  it('adds text without the stop string in text mode and reports the stop reason unless disabled', async () => {
    const sim = await start();
    const rendered = await render(sim);
    const sampling_params = { ...rendered.sampling_params, stop: ['look.'] };
    const text = (await generate(sim, { ...rendered, sampling_params, output_mode: 'text' })).body;
    const [choice] = text.choices;
    expect(text.output_mode).toBe('text');
    expect(choice?.text).toMatch(/(Let me|I will) $/);
    expect(vocabulary.decode(choice?.token_ids ?? [])).toContain('look.');
    expect(choice?.stop_reason).toBe('look.');
    expect(choice?.logprobs?.content[0]?.token).toBe(vocabulary.decode([choice?.token_ids?.[0] ?? 0]));
    const chunks = await stream(sim, { ...rendered, sampling_params, output_mode: 'text' });
    expect(chunks.flatMap(({ choices }) => choices.map((part) => part.text)).join('')).toBe(choice?.text);
    const blind = await generate(sim, { ...rendered, sampling_params: { ...sampling_params, detokenize: false } });
    expect(blind.body.choices[0]?.finish_reason).toBe('stop');
    expect(blind.body.choices[0]?.token_ids?.at(-1)).toBe(vocabulary.special.imEnd);
    const silent = await start({ generateStopReason: false });
    const reported = await generate(silent, { ...(await render(silent)), sampling_params });
    expect(reported.body.choices[0]).not.toHaveProperty('stop_reason');
  });

  it('fills the context without max_tokens, and when max_tokens exceeds it', async () => {
    const sim = await start({ maxModelLen: 200, scenarios: [{ name: 'long', rules: [{ reply: [{ think: 300 }] }] }] });
    const token_ids = vocabulary.encode('<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n');
    for (const max_tokens of [undefined, 5000]) {
      const { body } = await generate(sim, { token_ids, sampling_params: { max_tokens } });
      expect(body.choices[0]?.finish_reason).toBe('length');
      expect(body.choices[0]?.token_ids).toHaveLength(200 - token_ids.length);
    }
  });

  it.each([
    ['no ids', { token_ids: [] }, /token_ids/],
    ['a negative id', { token_ids: [-1] }, /token_ids/],
    ['an unknown id', { token_ids: [999_999] }, /out of vocabulary/],
    ['an overlong prompt', { token_ids: new Array(300).fill(5) }, /maximum model length of 200/],
    ['text without detokenizing', { output_mode: 'text', sampling_params: { detokenize: false } }, /detokenize/],
    ['a priority', { priority: 2 }, /priority scheduling/],
    ['an empty salt', { cache_salt: '' }, /cache_salt/],
    [
      'a grammar that the server did not render',
      { sampling_params: { structured_outputs: { structural_tag: '{}' } } },
      /tag/,
    ],
    ['a field that a scripted policy cannot honour', { sampling_params: { logit_bias: { 1: 2 } } }, /logit_bias/],
  ])('refuses %s and samples nothing', async (_, fields, message) => {
    const sim = await start({ maxModelLen: 200 });
    const { status, body } = await generate(sim, { token_ids: [1, 2], sampling_params: {}, ...fields });
    expect(status).toBe(400);
    expect(body.error?.message).toMatch(message);
    expect(sim.ledger.total).toBe(0);
  });

  it('refuses another model with 404', async () => {
    const sim = await start();
    expect((await generate(sim, { token_ids: [1], sampling_params: {}, model: 'other' })).status).toBe(404);
  });

  it('finds earlier prompts and replies in the cache per salt', async () => {
    const sim = await start();
    const { token_ids } = await render(sim);
    const send = async (ids: number[], cache_salt: string) =>
      (await generate(sim, { token_ids: ids, sampling_params: { seed: 1 }, cache_salt })).body;
    const first = await send(token_ids, 'a');
    expect(first.usage.prompt_tokens_details.cached_tokens).toBe(0);
    const reply = first.choices[0]?.token_ids ?? [];
    const next = [...token_ids, ...reply, ...vocabulary.encode('\n<|im_start|>user\nMore.<|im_end|>\n')];
    const cached = (await send(next, 'a')).usage.prompt_tokens_details.cached_tokens;
    expect(cached).toBe(Math.floor((token_ids.length + reply.length - 1) / 16) * 16);
    expect(cached).toBeGreaterThan(token_ids.length);
    expect((await send(next, 'b')).usage.prompt_tokens_details.cached_tokens).toBe(0);
    const metrics = await (await fetch(`${sim.url}/metrics`)).text();
    expect(metrics).toMatch(new RegExp(`vllm:prefix_cache_hits_total\\{[^}]*\\} ${cached}\\n`));
    const queries = token_ids.length + 2 * next.length;
    expect(metrics).toMatch(new RegExp(`vllm:prefix_cache_queries_total\\{[^}]*\\} ${queries}\\n`));
  });

  it('ends an aborted stream with its finish reason, with or without text', async () => {
    const sim = await start({ tokenDelayMs: 1, scenarios: [{ name: 'long', rules: [{ reply: [{ think: 500 }] }] }] });
    const body = { token_ids: [5, 6], sampling_params: {}, request_id: 'r1', stream: true };
    for (const output_mode of ['tokens', 'text']) {
      const response = await post(`${sim.url}/inference/v1/generate`, { ...body, output_mode });
      const aborted = await postJson(`${sim.url}/abort_requests`, { request_ids: ['generate-tokens-r1'] });
      expect(aborted.body).toEqual({ status: 'aborted', aborted: 1 });
      const parts = (events(await response.text()) as unknown as Generated[]).flatMap(({ choices }) => choices);
      const finishes = parts.flatMap(({ finish_reason: reason }) => reason ?? []);
      expect(finishes).toEqual(['abort']);
      const entry = sim.ledger.entries({ requestId: 'r1' }).at(-1);
      expect(parts.flatMap(({ token_ids }) => token_ids ?? [])).toEqual(entry?.response_ids);
    }
  });
});

describe('rendering completions', () => {
  it('returns one request per prompt, which samples the same reply as the completion', async () => {
    const sim = await start();
    const body = { prompt: ['one two', 'three'], max_tokens: 6, seed: 3, logprobs: 0 };
    const { body: rendered } = await postJson<Rendered[]>(`${sim.url}/v1/completions/render`, body);
    expect(rendered.map(({ token_ids }) => token_ids)).toEqual(body.prompt.map((text) => vocabulary.encode(text)));
    const direct = await postJson<Chunk>(`${sim.url}/v1/completions`, { ...body, return_token_ids: true });
    for (const [index, request] of rendered.entries()) {
      const { body: generated } = await generate(sim, request);
      expect(generated.choices[0]?.token_ids).toEqual(direct.body.choices[index]?.token_ids);
      expect(generated.request_id).toBe(`generate-tokens-${request.request_id}`);
    }
    expect(sim.ledger.entries()[0]).toMatchObject({ endpoint: '/v1/completions', prompt_form: 'text' });
  });
});
