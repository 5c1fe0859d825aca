import { mkdtemp, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VirtualClock } from '@floe-rl/core';
import { afterEach, describe, expect, it } from 'vitest';
import { loadScenarios, type SimOptions, type SimServer, startSim } from '../src/index.ts';
import { TEMPLATE_MODES } from '../src/template.ts';
import { bundledVocabulary } from '../src/vocabulary.ts';
import { assembled, type Chunk, events, post } from './sse.ts';

const vocabulary = bundledVocabulary();
const tools = [{ type: 'function', function: { name: 'bash', parameters: { type: 'object' } } }];
const user = { role: 'user', content: 'Please repair the failing test.' };
const request = { messages: [user], tools, return_token_ids: true, logprobs: true, seed: 5 };

const running: SimServer[] = [];
async function start(options: SimOptions = {}): Promise<SimServer> {
  const scenarios = options.scenarios ?? (await loadScenarios(['examples/scenarios/failing-test.yaml']));
  const sim = await startSim({ reportVersions: 'all', ...options, scenarios });
  running.push(sim);
  return sim;
}

afterEach(async () => {
  for (const sim of running.splice(0)) await sim.close();
});

async function chat(sim: SimServer, body: object, headers?: Record<string, string>): Promise<Chunk> {
  const response = await post(`${sim.url}/v1/chat/completions`, body, headers);
  expect(response.status).toBe(200);
  return (await response.json()) as Chunk;
}

async function chatStream(sim: SimServer, body: object): Promise<Chunk[]> {
  const response = await post(`${sim.url}/v1/chat/completions`, { ...body, stream: true });
  expect(response.headers.get('content-type')).toContain('text/event-stream');
  const text = await response.text();
  expect(text.endsWith('data: [DONE]\n\n')).toBe(true);
  return events(text);
}

describe('chat completions', () => {
  it('sends the content of the ledger in the same fields as vLLM', async () => {
    const sim = await start();
    const reply = await chat(
      sim,
      { ...request, top_logprobs: 2 },
      { 'x-request-id': 'call-1', 'x-session-id': 'ses-1' },
    );
    const [entry] = sim.ledger.entries({ requestId: 'call-1' });
    const choice = reply.choices[0];
    expect(entry).toBeDefined();
    expect(reply.id).toBe('chatcmpl-call-1');
    expect(reply.prompt_token_ids).toEqual(entry?.prompt_ids);
    expect(choice?.token_ids).toEqual(entry?.response_ids);
    expect(choice?.logprobs?.content.map(({ logprob }) => logprob)).toEqual(entry?.processed_logprobs);
    expect(choice?.weight_versions).toEqual(entry?.version_spans);
    expect(choice?.token_ids?.at(-1)).toBe(vocabulary.special.imEnd);
    expect(choice?.finish_reason).toBe('tool_calls');
    expect(choice?.stop_reason).toBeNull();
    expect(entry?.session_id).toBe('ses-1');
    expect(reply.usage).toEqual({
      prompt_tokens: entry?.prompt_ids.length,
      completion_tokens: entry?.response_ids.length,
      total_tokens: (entry?.prompt_ids.length ?? 0) + (entry?.response_ids.length ?? 0),
      prompt_tokens_details: {
        cached_tokens: 0,
        created_cache_tokens: 16 * Math.floor((entry?.prompt_ids.length ?? 0) / 16),
        multimodal_tokens: null,
      },
      // The 26 thinking tokens are 24 words and two newlines.
      completion_tokens_details: { reasoning_tokens: 26 },
    });
    for (const { logprob, top_logprobs: top } of choice?.logprobs?.content ?? []) {
      expect(top.length).toBeGreaterThan(0);
      expect(top[0]?.logprob).toBeGreaterThanOrEqual(logprob);
    }
    expect(choice?.message.tool_calls[0]?.function.name).toBe('bash');
    expect(choice?.message.reasoning).toMatch(/^\n( [a-z]+){24}\n$/);
    expect(choice?.message.content).toMatch(/^\n\nI'll .* first\.\n$/);
  });

  for (const templateMode of TEMPLATE_MODES) {
    it(`${templateMode}: streams the ids, logprobs and message that the plain reply has`, async () => {
      const sim = await start({ templateMode });
      for (const seed of [1, 2, 3]) {
        const body = { ...request, seed, stream_options: { include_usage: true } };
        const plain = await chat(sim, body);
        for (const interval of [1, 7]) {
          const chunks = await chatStream(sim, { ...body, stream_interval: interval });
          const whole = assembled(chunks);
          expect(whole.promptIds).toEqual(plain.prompt_token_ids);
          expect(whole.token_ids).toEqual(plain.choices[0]?.token_ids);
          expect(whole.logprobs).toEqual(plain.choices[0]?.logprobs);
          expect(whole.finish_reason).toBe(plain.choices[0]?.finish_reason);
          expect(whole.weight_versions).toEqual(plain.choices[0]?.weight_versions);
          // A stream shows the white space that was sampled before a tool call. A complete reply with only white space before a call has no
          // content.
          const content = whole.message.content?.trim() === '' ? null : whole.message.content;
          expect(content).toBe(plain.choices[0]?.message.content);
          expect(whole.message.reasoning).toBe(plain.choices[0]?.message.reasoning);
          expect(whole.message.tool_calls.map((call) => call.function)).toEqual(
            plain.choices[0]?.message.tool_calls.map((call) => call.function),
          );
          expect(chunks.at(-1)?.usage?.completion_tokens).toBe(whole.token_ids?.length);
          const last = chunks.filter(({ choices }) => choices.length > 0).at(-1)?.choices[0];
          expect(last?.finish_reason).not.toBeNull();
          expect(last?.token_ids?.at(-1)).toBe(vocabulary.special.imEnd);
        }
      }
    });

    it(`${templateMode}: extends the sampled ids when a turn is echoed with its tool result`, async () => {
      const sim = await start({ templateMode });
      const first = await chat(sim, request);
      const message = first.choices[0]?.message;
      const result = { role: 'tool', tool_call_id: message?.tool_calls[0]?.id, content: 'FAILED' };
      const second = await chat(sim, { ...request, messages: [user, message, result] });
      const so_far = [...(first.prompt_token_ids ?? []), ...(first.choices[0]?.token_ids ?? [])];
      expect(second.prompt_token_ids?.slice(0, so_far.length)).toEqual(so_far);
      expect(second.choices[0]?.message.tool_calls[0]?.function.arguments).toMatch(/^\{"command":"sed /);
      expect(second.usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThan(0);
    });
  }

  it('samples n choices, each with its own ledger entry', async () => {
    const sim = await start();
    const reply = await chat(sim, { ...request, n: 3 }, { 'x-request-id': 'many' });
    const streamed = await chatStream(sim, { ...request, n: 3 });
    const entries = sim.ledger.entries({ requestId: 'many' }).sort((a, b) => a.choice - b.choice);
    expect(reply.choices.map(({ token_ids }) => token_ids)).toEqual(entries.map(({ response_ids }) => response_ids));
    expect([0, 1, 2].map((index) => assembled(streamed, index).token_ids)).toEqual(
      entries.map(({ response_ids }) => response_ids),
    );
    expect(new Set(entries.map(({ response_ids }) => response_ids.join())).size).toBe(3);
  });

  it('reports raw logprobs in the raw_logprobs mode', async () => {
    const sim = await start({ logprobsMode: 'raw_logprobs' });
    const reply = await chat(sim, { ...request, temperature: 0.5 });
    const [entry] = sim.ledger.entries();
    expect(reply.choices[0]?.logprobs?.content.map(({ logprob }) => logprob)).toEqual(entry?.raw_logprobs);
    expect(entry?.raw_logprobs).not.toEqual(entry?.processed_logprobs);
  });

  it('uses the generation config for parameters that the request leaves out', async () => {
    const sim = await start({ generationConfig: { temperature: 0.6, top_k: 20 } });
    await chat(sim, { messages: [user] });
    await chat(sim, { messages: [user], temperature: 1, top_k: 0 });
    expect(sim.ledger.entries().map(({ params }) => [params.temperature, params.topK])).toEqual([
      [0.6, 20],
      [1, 0],
    ]);
  });

  it('cuts the reply at max_tokens, also in the middle of a call', async () => {
    const sim = await start();
    const whole = await chat(sim, request);
    const ids = whole.choices[0]?.token_ids ?? [];
    const inCall = ids.indexOf(vocabulary.special.toolCallOpen) + 4;
    const cut = await chat(sim, { ...request, max_tokens: inCall });
    expect(cut.choices[0]?.token_ids).toEqual(ids.slice(0, inCall));
    expect(cut.choices[0]?.finish_reason).toBe('length');
    expect(cut.choices[0]?.message).not.toHaveProperty('tool_calls');
    expect(cut.choices[0]?.message.content).toContain('<tool_call>\n{"');
    const streamed = assembled(await chatStream(sim, { ...request, max_tokens: inCall }));
    expect(streamed.message.content).toBe(cut.choices[0]?.message.content?.split('<tool_call>')[0]);
    expect(streamed.token_ids).toEqual(ids.slice(0, inCall));
    expect(streamed.finish_reason).toBe('length');
  });

  it('cuts the text but not the ids at a stop string', async () => {
    const sim = await start();
    const body = { messages: [{ role: 'user', content: 'Hello' }], return_token_ids: true, seed: 1, temperature: 0 };
    const whole = (await chat(sim, body)).choices[0];
    const stop = 'nothing left';
    expect(whole?.message.content).toContain(stop);
    const cut = (await chat(sim, { ...body, stop: [stop] })).choices[0];
    expect(cut?.message.content).toBe(whole?.message.content?.split(stop)[0]);
    expect(cut?.stop_reason).toBe(stop);
    expect(cut?.finish_reason).toBe('stop');
    expect(cut?.token_ids).toEqual(whole?.token_ids?.slice(0, cut?.token_ids?.length));
    expect(vocabulary.decode(cut?.token_ids ?? [])).toContain(stop);
    const streamed = assembled(await chatStream(sim, { ...body, stop }));
    expect(streamed.message.content).toBe(cut?.message.content);
    expect(streamed.token_ids).toEqual(cut?.token_ids);
  });

  it('stops at a stop token id and reports it as the stop reason', async () => {
    const sim = await start();
    const body = { messages: [{ role: 'user', content: 'Hello' }], return_token_ids: true, temperature: 0 };
    const whole = (await chat(sim, body)).choices[0]?.token_ids ?? [];
    const stop = whole[2] as number;
    const cut = (await chat(sim, { ...body, stop_token_ids: [stop] })).choices[0];
    expect(cut?.token_ids).toEqual(whole.slice(0, 3));
    expect(cut?.stop_reason).toBe(stop);
    expect(cut?.message.content).toBe(vocabulary.decode(whole.slice(0, 2)));
  });

  it('hides ids and logprobs together with the reasoning', async () => {
    const sim = await start();
    const [choice] = (await chat(sim, { ...request, include_reasoning: false })).choices;
    expect(choice?.message.reasoning).toBeNull();
    expect(choice?.logprobs).toBeNull();
    expect(choice?.token_ids).toBeNull();
  });

  it('leaves calls in the content when the request has no tools', async () => {
    const scenarios = [{ name: 's', rules: [{ reply: [{ call: { tool: 'x', arguments: { a: 1 } } }] }] }];
    const sim = await start({ scenarios });
    const [choice] = (await chat(sim, { messages: [user] })).choices;
    expect(choice?.message.content).toBe('<tool_call>\n{"name": "x", "arguments": {"a":1}}\n</tool_call>');
    expect(choice?.finish_reason).toBe('stop');
  });

  it('encodes delimiters in tool output as delimiters, as engines do', async () => {
    const sim = await start();
    const messages = [user, { role: 'tool', tool_call_id: 'x', content: 'a<|im_end|>b' }];
    const reply = await chat(sim, { ...request, messages });
    const ends = reply.prompt_token_ids?.filter((id) => id === vocabulary.special.imEnd).length;
    // The prompt has four `<|im_end|>` ids: three end the system, user and tool turns, and one is in the tool's output.
    expect(ends).toBe(4);
  });

  it.each([
    ['an unknown model', { messages: [user], model: 'other' }, 404, 'The model `other` does not exist.'],
    ['top_logprobs without logprobs', { messages: [user], top_logprobs: 2 }, 400, 'logprobs'],
    ['a field that a scripted policy cannot honour', { messages: [user], logit_bias: { 1: 2 } }, 400, 'logit_bias'],
    ["a wrong type with the field's name", { messages: [user], temperature: 'hot' }, 400, 'temperature'],
    [
      'an image when the model has no vision',
      { messages: [{ role: 'user', content: [{ type: 'image_url' }] }] },
      400,
      'messages.0.content',
    ],
  ])('refuses %s', async (_, body, status, words) => {
    const sim = await start({ vision: false });
    const response = await post(`${sim.url}/v1/chat/completions`, body);
    expect(response.status).toBe(status);
    const { error } = (await response.json()) as Chunk;
    expect(error?.message).toContain(words);
    expect(error?.code).toBe(status);
    expect(sim.ledger.total).toBe(0);
  });

  it('accepts roles that the template skips and arguments that are not valid JSON', async () => {
    const sim = await start();
    const calls = [{ function: { name: 'f', arguments: '{' } }];
    for (const odd of [
      { role: 'critic', content: 'no' },
      { role: 'assistant', tool_calls: calls },
    ]) {
      const reply = await chat(sim, { messages: [{ role: 'user', content: 'hi' }, odd] });
      expect(reply.choices[0]?.message.role).toBe('assistant');
    }
  });

  it.each([
    [{ messages: [] }, 'BadRequestError', null],
    [{}, 'Bad Request', 'body.messages'],
    [{ ...request, temperature: 'x' }, 'Bad Request', 'body.temperature'],
    [{ ...request, temperature: -1 }, 'BadRequestError', 'temperature'],
    [{ ...request, max_tokens: 0 }, 'BadRequestError', 'max_tokens'],
    [{ ...request, max_tokens: 1e6 }, 'BadRequestError', 'max_tokens'],
    [{ ...request, stop: [''] }, 'BadRequestError', null],
    [{ ...request, model: 'no' }, 'NotFoundError', 'model'],
  ])('names the invalid field as vLLM does: %j', async (body, type, param) => {
    const sim = await start();
    const { error } = (await (await post(`${sim.url}/v1/chat/completions`, body)).json()) as Chunk;
    expect(error).toMatchObject({ type, param });
  });

  it('reports versions only in token generation unless set otherwise', async () => {
    const sim = await start({ reportVersions: 'generate', scaleOut: true });
    const reported = async (path: string, body: object): Promise<unknown> =>
      ((await (await post(`${sim.url}${path}`, body)).json()) as Chunk).choices[0]?.weight_versions;
    expect(await reported('/v1/chat/completions', request)).toBeUndefined();
    expect(await reported('/v1/completions', { prompt: 'hi' })).toBeUndefined();
    const spans = await reported('/inference/v1/generate', { token_ids: [5], sampling_params: {} });
    expect(spans).toMatchObject([{ version: 'v0', start: 0 }]);
  });

  it("refuses overlong prompts and reply lengths in vLLM's words", async () => {
    const sim = await start({ maxModelLen: 64 });
    const refused = async (body: object): Promise<string | undefined> => {
      const response = await post(`${sim.url}/v1/chat/completions`, body);
      expect(response.status).toBe(400);
      return ((await response.json()) as Chunk).error?.message;
    };
    expect(await refused({ messages: [{ role: 'user', content: 'word '.repeat(100) }] })).toMatch(
      /^This model's maximum context length is 64 tokens\. However, your prompt contains at least \d+ input tokens,/,
    );
    expect(await refused({ messages: [{ role: 'user', content: 'hi' }], max_tokens: 65 })).toMatch(
      /^max_tokens=65 cannot be greater than max_model_len=64\./,
    );
    const lowered = await chat(sim, { messages: [{ role: 'user', content: 'hi' }], max_tokens: 64 });
    expect(lowered.usage?.total_tokens).toBeLessThanOrEqual(64);
    const fits = await chat(sim, { messages: [{ role: 'user', content: 'hi' }] });
    expect(fits.usage?.total_tokens).toBeLessThanOrEqual(64);
  });
});

describe('completions', () => {
  it('gives the same reply as chat for the same prompt ids', async () => {
    const sim = await start();
    const viaChat = await chat(sim, { ...request, max_tokens: 200 });
    const body = { prompt: viaChat.prompt_token_ids, max_tokens: 200, seed: 5, return_token_ids: true, logprobs: 0 };
    const response = await post(`${sim.url}/v1/completions`, body);
    const reply = (await response.json()) as Chunk;
    expect(reply.choices[0]?.token_ids).toEqual(viaChat.choices[0]?.token_ids);
    expect(reply.choices[0]?.prompt_token_ids).toEqual(viaChat.prompt_token_ids);
    expect(reply.choices[0]?.logprobs).toMatchObject({
      token_logprobs: viaChat.choices[0]?.logprobs?.content.map(({ logprob }) => logprob),
    });
    expect(reply.choices[0]?.text).toBe(vocabulary.decode(viaChat.choices[0]?.token_ids?.slice(0, -1) ?? []));
    const streamed = events(await (await post(`${sim.url}/v1/completions`, { ...body, stream: true })).text());
    expect(streamed.flatMap(({ choices }) => choices[0]?.token_ids ?? [])).toEqual(reply.choices[0]?.token_ids);
    expect(streamed.map(({ choices }) => choices[0]?.text ?? '').join('')).toBe(reply.choices[0]?.text);
    expect(streamed[0]?.choices[0]?.prompt_token_ids).toEqual(viaChat.prompt_token_ids);
  });

  it('stops after 16 tokens without max_tokens and refuses unknown ids', async () => {
    const sim = await start();
    const prompt = '<|im_start|>user\nthe failing test<|im_end|>\n<|im_start|>assistant\n';
    const scenarios = [{ name: 's', rules: [{ reply: [{ think: 100 }] }] }];
    const thinker = await start({ scenarios });
    const reply = (await (await post(`${thinker.url}/v1/completions`, { prompt })).json()) as Chunk;
    expect(reply.usage?.completion_tokens).toBe(16);
    expect(reply.choices[0]?.finish_reason).toBe('length');
    expect((await post(`${sim.url}/v1/completions`, { prompt: [1, 999_999] })).status).toBe(400);
  });

  it('replies to a list of prompts in order', async () => {
    const sim = await start();
    const prompt = [vocabulary.encode('one'), vocabulary.encode('two more')];
    const reply = (await (
      await post(`${sim.url}/v1/completions`, { prompt, n: 2, return_token_ids: true })
    ).json()) as Chunk;
    expect(reply.choices.map(({ index }) => index)).toEqual([0, 1, 2, 3]);
    expect(reply.choices.map((choice) => choice.prompt_token_ids)).toEqual([
      prompt[0],
      prompt[0],
      prompt[1],
      prompt[1],
    ]);
  });
});

describe('the other routes', () => {
  it("tokenizes messages to the ids of a call's prompt", async () => {
    const sim = await start({ templateMode: 'open_think' });
    const reply = await chat(sim, request);
    const tokenized = await (await post(`${sim.url}/tokenize`, { messages: [user], tools })).json();
    expect(tokenized).toEqual({
      count: reply.prompt_token_ids?.length,
      max_model_len: 32_768,
      tokens: reply.prompt_token_ids,
      token_strs: null,
    });
    const { prompt } = (await (await post(`${sim.url}/detokenize`, { tokens: reply.prompt_token_ids })).json()) as {
      prompt: string;
    };
    const again = (await (await post(`${sim.url}/tokenize`, { prompt, return_token_strs: true })).json()) as {
      tokens: number[];
      token_strs: string[];
    };
    expect(again.tokens).toEqual(reply.prompt_token_ids);
    expect(again.token_strs.join('')).toBe(prompt);
  });

  it("lists the model with its context length and exports metrics under vLLM's names", async () => {
    const sim = await start({ maxModelLen: 1000 });
    await chat(sim, request);
    const models = (await (await fetch(`${sim.url}/v1/models`)).json()) as {
      data: { id: string; max_model_len: number }[];
    };
    expect(models.data[0]).toMatchObject({ id: 'floe-sim', max_model_len: 1000 });
    const metrics = await (await fetch(`${sim.url}/metrics`)).text();
    const [entry] = sim.ledger.entries();
    const labels = '{model_name="floe-sim",engine="0"}';
    expect(metrics).toContain(`vllm:generation_tokens_total${labels} ${entry?.response_ids.length}`);
    expect(metrics).toContain(`vllm:prompt_tokens_total${labels} ${entry?.prompt_ids.length}`);
    expect(metrics).toContain(`vllm:num_requests_running${labels} 0`);
    expect((await fetch(`${sim.url}/health`)).status).toBe(200);
    expect(await (await fetch(`${sim.url}/version`)).json()).toEqual({ version: '0.32.0' });
    const other = await start({ version: '0.9.1' });
    expect(await (await fetch(`${other.url}/version`)).json()).toEqual({ version: '0.9.1' });
  });

  it('replies 404 to unknown routes and 405 to wrong methods', async () => {
    const sim = await start();
    expect((await fetch(`${sim.url}/v1/nothing`)).status).toBe(404);
    expect((await fetch(`${sim.url}/v1/chat/completions`)).status).toBe(405);
  });

  it('updates weights over HTTP and states the reason of a refusal', async () => {
    const sim = await start();
    const info = async (): Promise<unknown> => (await fetch(`${sim.url}/weight_info`)).json();
    expect(await info()).toEqual({ weight_version: 'v0' });
    const logits = { 'failing-test': { repair: [2, -2] } };
    expect((await post(`${sim.url}/update_weights`, { version: 'v1', logits })).status).toBe(200);
    expect(await info()).toEqual({ weight_version: 'v1' });
    expect((await post(`${sim.url}/update_weights`, { version: 'v1', logits: {} })).status).toBe(200);
    expect((await post(`${sim.url}/update_weights`, { version: 'v2', logits: { x: { y: [1] } } })).status).toBe(400);
    expect((await post(`${sim.url}/update_weight_version`, { new_version: 'v3' })).status).toBe(200);
    expect((await chat(sim, request)).choices[0]?.weight_versions?.[0]?.version).toBe('v3');
    const current = (await (await fetch(`${sim.url}/__sim/weights`)).json()) as { logits: unknown };
    expect(current.logits).toMatchObject(logits);
  });

  it('samples the rest of a running reply with weights updated over HTTP and reports it in spans', async () => {
    const clock = new VirtualClock();
    const sim = await start({ clock, tokenDelayMs: 10 });
    const response = await post(`${sim.url}/v1/chat/completions`, { ...request, stream: true });
    let text = '';
    let ended = false;
    const read = (async () => {
      const decoder = new TextDecoder();
      for await (const part of response.body as unknown as AsyncIterable<Uint8Array>) text += decoder.decode(part);
      ended = true;
    })();
    const sent = (): number => events(text.slice(0, text.lastIndexOf('\n\n') + 2)).length;
    let updated = false;
    while (!ended) {
      if (!updated && sent() > 8) {
        updated = true;
        const update = post(`${sim.url}/update_weights`, {
          version: 'v1',
          logits: { 'failing-test': { repair: [3, -3] } },
        });
        expect((await update).status).toBe(200);
      }
      clock.advance(10);
      await new Promise((resolve) => setImmediate(resolve));
    }
    await read;
    const whole = assembled(events(text));
    const [entry] = sim.ledger.entries();
    const spans = entry?.version_spans ?? [];
    expect(spans.map(({ version }) => version)).toEqual(['v0', 'v1']);
    expect(spans[0]?.end).toBeGreaterThanOrEqual(8);
    expect(whole.weight_versions).toEqual(spans);
    expect(whole.token_ids).toEqual(entry?.response_ids);
    const expected = sim.oracle(
      entry?.prompt_ids ?? [],
      entry?.response_ids ?? [],
      spans,
      entry?.params ?? (undefined as never),
    );
    for (const [index, raw] of expected.raw.entries())
      expect(raw).toBeCloseTo(entry?.raw_logprobs[index] ?? Number.NaN, 9);
  });

  it('aborts a call whose client disconnects, streaming or not', async () => {
    const clock = new VirtualClock();
    const sim = await start({ clock, tokenDelayMs: 10 });
    for (const stream of [true, false]) {
      const controller = new AbortController();
      const call = fetch(`${sim.url}/v1/chat/completions`, {
        method: 'POST',
        body: JSON.stringify({ ...request, stream }),
        signal: controller.signal,
      }).then((response) => response.text());
      while (sim.engine.running === 0) await new Promise((resolve) => setImmediate(resolve));
      controller.abort();
      await expect(call).rejects.toThrow();
      await sim.engine.idle();
    }
    expect(sim.ledger.entries().map((entry) => entry.finish_reason)).toEqual(['abort', 'abort']);
    expect(sim.engine.running).toBe(0);
  });

  it('pauses, resumes and aborts over HTTP', async () => {
    const sim = await start();
    const paused = async (): Promise<unknown> => (await fetch(`${sim.url}/is_paused`)).json();
    expect(await (await post(`${sim.url}/pause?mode=keep`, {})).json()).toEqual({ status: 'paused' });
    expect(await paused()).toEqual({ is_paused: true });
    const held = chat(sim, request, { 'x-request-id': 'held' });
    while (sim.engine.running === 0) await new Promise((resolve) => setImmediate(resolve));
    const aborted = await post(`${sim.url}/abort_requests`, { request_ids: ['chatcmpl-held'] });
    expect(await aborted.json()).toEqual({ status: 'aborted', aborted: 1 });
    expect((await held).choices[0]?.finish_reason).toBe('abort');
    expect(await (await post(`${sim.url}/resume`, {})).json()).toEqual({ status: 'resumed' });
    expect(await paused()).toEqual({ is_paused: false });
    expect((await post(`${sim.url}/pause?mode=sideways`, {})).status).toBe(400);
  });

  it("refuses invalid settings and scenarios with the field's name", async () => {
    await expect(startSim({ maxNumSeqs: 0 })).rejects.toThrow(/maxNumSeqs/);
    await expect(startSim({ scenarios: [{ name: 's', rules: [] }] })).rejects.toThrow(/scenarios\.0\.rules/);
    await expect(startSim({ nosuch: 1 } as never)).rejects.toThrow(/nosuch/);
    const sim = await start();
    await expect(startSim({ port: Number(new URL(sim.url).port) })).rejects.toThrow(/cannot listen/);
  });

  it('serves the ledger and writes every entry to its file', async () => {
    const path = join(await mkdtemp(join(tmpdir(), 'floe-sim-')), 'deep', 'ledger.jsonl');
    const sim = await start({ ledgerFile: path, ledgerLimit: 2 });
    for (const id of ['a', 'b', 'c']) await chat(sim, request, { 'x-request-id': id, 'x-session-id': `of-${id}` });
    const served = async (query: string): Promise<{ total: number; entries: { request_id: string }[] }> =>
      (await (await fetch(`${sim.url}/__sim/ledger${query}`)).json()) as never;
    expect((await served('')).entries.map((entry) => entry.request_id)).toEqual(['b', 'c']);
    expect((await served('')).total).toBe(3);
    expect((await served('?session_id=of-b')).entries.map((entry) => entry.request_id)).toEqual(['b']);
    expect((await served('?request_id=c')).entries).toEqual(sim.ledger.entries({ requestId: 'c' }));
    const lines = (await readFile(path, 'utf8')).trimEnd().split('\n');
    expect(lines.map((line) => JSON.parse(line).request_id)).toEqual(['a', 'b', 'c']);
    expect(JSON.parse(lines[2] as string)).toEqual(sim.ledger.entries({ requestId: 'c' })[0]);
  });
});

describe('the list of choices', () => {
  it('contains every reply that a rule can write, with the options that lead to it', async () => {
    const sim = await start({ scenarios: await loadScenarios(['examples/learn-sim/scenario.yaml']) });
    const reply = await fetch(`${sim.url}/__sim/choices?scenario=repair`);
    const { turn_start_ids, rules } = (await reply.json()) as ChoiceList;
    expect(vocabulary.decode(turn_start_ids)).toBe('<|im_start|>assistant\n');
    expect(rules.map(({ rule }) => rule)).toEqual([0, 1, 2, 3, 4]);
    const [first, second] = rules;
    expect(first?.turns.map(({ picks }) => picks)).toEqual([0, 1, 2].map((option) => [{ choice: 'plan', option }]));
    expect(first?.turns.map(({ token_ids }) => vocabulary.decode(token_ids as number[])).at(-1)).toBe(
      'Ask the operator.<|im_end|>',
    );
    expect(second?.turns.flatMap(({ picks }) => picks.map(({ choice }) => choice))).toEqual(
      Array(2).fill('port-billing'),
    );
    await chat(sim, { ...request, messages: [{ role: 'user', content: 'The service billing does not start.' }] });
    const [entry] = sim.ledger.entries();
    expect(first?.turns.map(({ token_ids }) => token_ids)).toContainEqual(entry?.response_ids);
  });

  it('has null where a random thinking token is drawn, and all scenarios unless one is named', async () => {
    const sim = await start();
    const { rules } = (await (await fetch(`${sim.url}/__sim/choices`)).json()) as ChoiceList;
    expect(new Set(rules.map(({ scenario }) => scenario))).toEqual(new Set(['failing-test', 'default']));
    expect(rules[0]?.turns[0]?.token_ids.filter((id) => id === null)).toHaveLength(24);
    const unknown = await fetch(`${sim.url}/__sim/choices?scenario=other`);
    expect(unknown.status).toBe(404);
    expect(await unknown.text()).toContain('there is no scenario other');
  });
});

type ChoiceList = {
  readonly turn_start_ids: number[];
  readonly rules: readonly {
    readonly scenario: string;
    readonly rule: number;
    readonly turns: readonly {
      readonly token_ids: readonly (number | null)[];
      readonly picks: readonly { readonly choice: string; readonly option: number }[];
    }[];
  }[];
};
