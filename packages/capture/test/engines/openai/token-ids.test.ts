import { systemClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { createOpenaiEngine } from '../../../src/engines/openai/engine.ts';
import { contractRequest } from '../contract.ts';
import { generateAsPool } from '../pool-call.ts';
import { json, likelyTokens, type Received, ScriptedServer, vllmReply } from '../scripted-server.ts';

const never = new AbortController().signal;
let server: ScriptedServer;
let engine: Engine | null = null;

async function connect(over: object = {}): Promise<Engine> {
  engine = await createOpenaiEngine(engineSpecSchema.parse({ kind: 'openai', base_url: server.baseUrl, ...over }), {
    clock: systemClock,
  });
  return engine;
}

async function generate(over: Partial<GenerateRequest> = {}): Promise<GenerateReply> {
  return generateAsPool(engine ?? (await connect()), contractRequest('plain', over), never);
}

/** Changes the only choice of a reply. */
function withChoice(received: Received, over: object): Record<string, unknown> {
  const reply = vllmReply(received) as { choices: object[] };
  return { ...reply, choices: [{ ...reply.choices[0], ...over }] };
}

const answer = (make: (received: Received) => object): void => {
  server.onChat = (received) => json(received.response, 200, make(received));
};

beforeEach(async () => {
  server = new ScriptedServer((received) => json(received.response, 200, vllmReply(received)));
  await server.listen();
});

afterEach(async () => {
  await engine?.close();
  engine = null;
  await server.close();
});

describe('the probe of token ids', () => {
  it('finds that an API returns ids and log-probabilities, and measures their mode', async () => {
    server.onLogprobsProbe = likelyTokens('raw');
    const { capabilities, logprobs_mode, streaming } = (await connect()).info();
    expect(capabilities).toMatchObject({ token_ids: true, token_input: 'none' });
    expect({ logprobs_mode, streaming }).toEqual({ logprobs_mode: 'raw', streaming: false });
    expect(server.chats.map(({ body }) => body)).toEqual([
      expect.objectContaining({ return_token_ids: true, return_prompt_token_ids: true, logprobs: true, max_tokens: 1 }),
    ]);
  });

  it('tries without the field of SGLang when an API refuses it', async () => {
    server.unknownFields = ['return_prompt_token_ids'];
    expect((await connect()).info().capabilities.token_ids).toBe(true);
    await generate();
    expect(server.chats.at(-1)?.body).toMatchObject({ return_token_ids: true, logprobs: true });
    expect(server.chats.at(-1)?.body).not.toHaveProperty('return_prompt_token_ids');
  });

  it.each<[string, () => void, string]>([
    ['refuses the fields', () => (server.unknownFields = ['return_token_ids']), 'Extra inputs are not permitted'],
    [
      'ignores the fields',
      () => answer((received) => withChoice(received, { token_ids: undefined })),
      'token_ids is missing',
    ],
    [
      'returns no ids of the prompt',
      () => answer((received) => ({ ...vllmReply(received), prompt_token_ids: undefined })),
      'prompt_token_ids is missing',
    ],
    ['returns no log-probabilities', () => answer((received) => withChoice(received, { logprobs: null })), 'logprobs'],
    [
      'returns another number of ids than it counts',
      () => answer((received) => withChoice(received, { token_ids: [1] })),
      'usage.completion_tokens is 3',
    ],
  ])('finds that an API %s, and notes why its replies are not trained on', async (_, prepare, reason) => {
    prepare();
    const info = (await connect()).info();
    expect(info.capabilities.token_ids).toBe(false);
    expect(info.logprobs_mode).toBeNull();
    expect(info.capabilities.notes[0]).toMatch(/^no token ids, so that its replies are not trained on: /);
    expect(info.capabilities.notes[0]).toContain(reason);
    await expect(connect({ token_ids: 'required' })).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('token_ids are required'),
    });
  });

  it.each([
    [429, 'engine_unavailable'],
    [500, 'engine_error'],
    [401, 'engine_error'],
  ])('draws no conclusion from status %i', async (status, code) => {
    server.onChat = ({ response }) => json(response, status, { error: { message: 'no' } });
    await expect(connect()).rejects.toMatchObject({ code, details: { status } });
  });

  it('is not made when token ids are switched off', async () => {
    expect((await connect({ token_ids: 'off' })).info().capabilities.token_ids).toBe(false);
    expect(server.chats).toHaveLength(0);
  });
});

describe('replies with token ids', () => {
  it('have exactly the ids and log-probabilities that the API sent, and the named version', async () => {
    (await connect()).setPolicyVersion('step-3');
    const reply = await generate();
    expect([...reply.promptIds]).toEqual([1, 5, 6, 7]);
    expect([...reply.responseIds]).toEqual([11, 12, 2]);
    expect([...reply.responseLogprobs]).toEqual([-0.25, -0.5, -0.75]);
    expect(reply).toMatchObject({
      logprobsMode: 'processed',
      versionSpans: [{ version: 'step-3', start: 0, end: 3 }],
      stop: { kind: 'token', id: 2 },
    });
  });

  it('are sampled with the parameters that OpenAI has no field for', async () => {
    await generate({ sampling: samplingSchema.parse({ top_k: 4, min_p: 0.1, repetition_penalty: 1.2 }) });
    expect(server.chats.at(-1)?.body).toMatchObject({ top_k: 4, min_p: 0.1, repetition_penalty: 1.2 });
    expect((engine as Engine).info().capabilities.notes.join()).not.toContain('has no field');
  });

  it('have the stop string that the API reports, and an unknown stop when it reports none', async () => {
    answer((received) => withChoice(received, { matched_stop: 'END' }));
    expect((await generate({ stop: ['END'] })).stop).toEqual({ kind: 'string', text: 'END' });
    answer((received) => vllmReply(received));
    expect((await generate({ stop: ['END'] })).stop).toBeNull();
  });

  it.each<[string, (received: Received) => object]>([
    ['ids are missing', (received) => withChoice(received, { token_ids: undefined })],
    ['a log-probability is missing', (received) => withChoice(received, { logprobs: { content: [] } })],
    ['it is from another model', (received) => ({ ...vllmReply(received), model: 'newer' })],
  ])('are refused when %s', async (_, make) => {
    await connect();
    answer(make);
    await expect(generate()).rejects.toMatchObject({ code: 'engine_error' });
  });
});
