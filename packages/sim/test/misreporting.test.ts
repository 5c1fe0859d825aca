import { VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { bundledVocabulary } from '../src/vocabulary.ts';
import { postJson, simStarter, TOOLS, USER } from './sim-client.ts';
import { assembled, type Chunk, events, post } from './sse.ts';

const vocabulary = bundledVocabulary();
const start = simStarter({ scaleOut: true, seed: 11, reportVersions: 'all' });
const body = { messages: [USER], tools: TOOLS, seed: 5, logprobs: true, return_token_ids: true };

const chat = (url: string, more: object = {}, headers?: Record<string, string>) =>
  postJson<Chunk>(`${url}/v1/chat/completions`, { ...body, ...more }, headers);

describe('an engine that misreports', () => {
  it('model_changed: reports another model from then on and accepts the old name', async () => {
    const sim = await start({ faults: [{ kind: 'model_changed', on_calls: [2] }] });
    expect((await chat(sim.url)).body.model).toBe('floe-sim');
    const models = async () =>
      ((await (await fetch(`${sim.url}/v1/models`)).json()) as { data: { id: string }[] }).data[0]?.id;
    expect(await models()).toBe('floe-sim');
    for (let i = 0; i < 2; i++)
      expect((await chat(sim.url, { model: 'floe-sim' })).body.model).toBe('floe-sim-changed-1');
    expect(await models()).toBe('floe-sim-changed-1');
    expect((await chat(sim.url, { model: 'floe-sim-changed-1' })).status).toBe(200);
    expect((await chat(sim.url, { model: 'floe-sim-changed-2' })).status).toBe(404);
  });

  for (const stream of [false, true]) {
    it(`version_changed: reports the old weights ${stream ? 'in a stream ' : ''}while other weights sample the rest of a reply`, async () => {
      const sim = await start({ faults: [{ kind: 'version_changed', on_calls: [1], after_tokens: 5 }] });
      const response = await post(`${sim.url}/v1/chat/completions`, { ...body, stream });
      const choice = stream ? assembled(events(await response.text())) : ((await response.json()) as Chunk).choices[0];
      const length = choice?.token_ids?.length ?? 0;
      expect(choice?.weight_versions).toEqual([{ version: 'v0', start: 0, end: length }]);
      const info = await (await fetch(`${sim.url}/weight_info`)).json();
      expect(info).toEqual({ weight_version: 'v0' });
      const [entry] = sim.ledger.entries();
      if (entry === undefined) throw new Error('no ledger entry');
      const secret = entry.version_spans[1]?.version ?? '';
      expect(entry.version_spans).toEqual([
        { version: 'v0', start: 0, end: 5 },
        { version: secret, start: 5, end: length },
      ]);
      expect(secret).not.toBe('v0');
      // The reported logprobs match the versions in the ledger, but not version `v0`, which the server reports for all tokens.
      const truth = sim.oracle(entry.prompt_ids, entry.response_ids, entry.version_spans, entry.params);
      const lie = sim.oracle(entry.prompt_ids, entry.response_ids, 'v0', entry.params);
      const reported = choice?.logprobs?.content.map(({ logprob }) => logprob) ?? [];
      for (const [i, logprob] of reported.entries()) expect(logprob).toBeCloseTo(truth.processed[i] ?? Number.NaN, 9);
      expect(reported.some((logprob, i) => Math.abs(logprob - (lie.processed[i] ?? 0)) > 1e-6)).toBe(true);
      expect((await chat(sim.url)).body.choices[0]?.weight_versions).toMatchObject([{ version: 'v0' }]);
      sim.updateWeights('v1');
      expect((await chat(sim.url)).body.choices[0]?.weight_versions).toMatchObject([{ version: 'v1' }]);
      expect(sim.ledger.entries().at(-1)?.version_spans).toMatchObject([{ version: 'v1' }]);
    });
  }

  it('tokenizer_mismatch: renders and tokenizes to ids of another vocabulary, counted separately from generation', async () => {
    const sim = await start({
      faults: [
        { kind: 'tokenizer_mismatch', on_calls: [2] },
        { kind: 'http_500', on_calls: [2] },
      ],
    });
    const tokens = async () =>
      (await postJson<{ tokens: number[] }>(`${sim.url}/tokenize`, { prompt: 'hello there' })).body.tokens;
    const right = vocabulary.encode('hello there');
    expect(await tokens()).toEqual(right);
    expect(await tokens()).toEqual(right.map((id) => (id + 1) % vocabulary.size));
    sim.setFaults([{ kind: 'tokenizer_mismatch' }]);
    const rendered = await postJson<{ token_ids: number[] }>(`${sim.url}/v1/chat/completions/render`, body);
    const direct = await chat(sim.url);
    expect(rendered.body.token_ids).toEqual(direct.body.prompt_token_ids?.map((id) => (id + 1) % vocabulary.size));
  });

  it('off_by_one_logprobs: sends each entry one position late and as many entries as ids', async () => {
    const sim = await start({ faults: [{ kind: 'off_by_one_logprobs' }] });
    for (const stream of [false, true]) {
      const request = { ...body, return_tokens_as_token_ids: true, stream };
      const response = await post(`${sim.url}/v1/chat/completions`, request);
      const choice = stream ? assembled(events(await response.text())) : ((await response.json()) as Chunk).choices[0];
      const entry = sim.ledger.entries().at(-1);
      const reported = choice?.logprobs?.content ?? [];
      expect(choice?.token_ids).toEqual(entry?.response_ids);
      expect(reported).toHaveLength(entry?.response_ids.length ?? 0);
      expect(reported.slice(1).map(({ logprob }) => logprob)).toEqual(entry?.processed_logprobs.slice(0, -1));
      expect(reported.slice(1).map(({ token }) => token)).toEqual(
        entry?.response_ids.slice(0, -1).map((id) => `token_id:${id}`),
      );
      expect(reported[0]?.token).not.toBe(`token_id:${entry?.response_ids[0]}`);
    }
  });

  it('echo_other_prompt: changes one id of the reported prompt on every route that reports it', async () => {
    const sim = await start({ faults: [{ kind: 'echo_other_prompt' }] });
    const prompt = vocabulary.encode('some words to go on with');
    const ids = { token_ids: prompt, sampling_params: { max_tokens: 2 }, return_token_ids: true };
    const generated = await postJson<Chunk>(`${sim.url}/inference/v1/generate`, ids);
    const completed = await postJson<Chunk>(`${sim.url}/v1/completions`, { prompt, return_token_ids: true });
    const chatted = await chat(sim.url);
    for (const [echo, truth] of [
      [generated.body.prompt_token_ids, prompt],
      [completed.body.choices[0]?.prompt_token_ids, prompt],
      [chatted.body.prompt_token_ids, sim.ledger.entries().at(-1)?.prompt_ids],
    ]) {
      expect(echo).toHaveLength(truth?.length ?? 0);
      expect(echo?.filter((id, i) => id !== truth?.[i])).toHaveLength(1);
    }
    expect(sim.ledger.entries().map((entry) => entry.prompt_ids)).toContainEqual(prompt);
  });

  it('dies_mid_stream: ends every call, refuses some connections and restarts without its cache', async () => {
    const long = [{ name: 'long', rules: [{ reply: [{ think: 400 }] }] }];
    const sim = await start({
      scenarios: long,
      tokenDelayMs: 1,
      faults: [{ kind: 'dies_mid_stream', on_calls: [2], after_tokens: 3, down_calls: 2 }],
    });
    const bystander = await post(`${sim.url}/v1/chat/completions`, { ...body, stream: true });
    const dying = await post(`${sim.url}/v1/chat/completions`, { ...body, stream: true });
    await expect(dying.text()).rejects.toThrow();
    await expect(bystander.text()).rejects.toThrow();
    await expect(fetch(`${sim.url}/health`)).rejects.toThrow('fetch failed');
    await expect(chat(sim.url)).rejects.toThrow('fetch failed');
    const back = await chat(sim.url, { max_tokens: 3 });
    expect(back.status).toBe(200);
    expect(back.body.usage?.prompt_tokens_details?.cached_tokens).toBe(0);
    expect(sim.ledger.entries().map((entry) => entry.finish_reason)).toEqual(['abort', 'abort', 'length']);
  });

  it('dies_mid_stream: cuts a reply that is not streamed as well', async () => {
    const sim = await start({ faults: [{ kind: 'dies_mid_stream', times: 1, down_calls: 1 }] });
    const response = await post(`${sim.url}/inference/v1/generate`, { token_ids: [1], sampling_params: {} });
    await expect(response.text()).rejects.toThrow();
    await expect(chat(sim.url)).rejects.toThrow('fetch failed');
    expect((await chat(sim.url)).status).toBe(200);
  });

  it('slow: multiplies the delays of the call that it hits', async () => {
    const clock = new VirtualClock();
    const sim = await start({ clock, tokenDelayMs: 10, faults: [{ kind: 'slow', on_calls: [2], factor: 3 }] });
    const times: number[] = [];
    for (let i = 0; i < 2; i++) {
      let done = false;
      const call = chat(sim.url, { max_tokens: 5 }).then(() => {
        done = true;
      });
      while (!done) {
        clock.advance(1);
        await new Promise((resolve) => setImmediate(resolve));
      }
      await call;
      const entry = sim.ledger.entries().at(-1);
      times.push((entry?.ended_ms ?? 0) - (entry?.started_ms ?? 0));
    }
    expect(times).toEqual([50, 150]);
  });

  it.each(['missing_ids', 'foreign_ids', 'logprobs_length', 'logprob_positive', 'usage_mismatch', 'http_429'] as const)(
    '%s hits token generation as it hits chats',
    async (kind) => {
      const sim = await start();
      await chat(sim.url);
      sim.setFaults([{ kind }]);
      const request = { token_ids: [1, 2], sampling_params: { logprobs: 0, seed: 1 }, return_token_ids: true };
      const { status, body: reply } = await postJson<{
        prompt_token_ids?: number[];
        choices: { token_ids: number[] | null; logprobs: { content: { logprob: number }[] } }[];
        usage: { completion_tokens: number };
      }>(`${sim.url}/inference/v1/generate`, request);
      const entry = sim.ledger.entries().at(-1);
      const truth = entry?.response_ids ?? [];
      const choice = reply.choices?.[0];
      expect({
        status,
        ids: choice?.token_ids ?? null,
        echo: reply.prompt_token_ids,
        logprobs: choice?.logprobs.content.length,
        first: choice?.logprobs.content[0]?.logprob,
        tokens: reply.usage?.completion_tokens,
      }).not.toEqual({
        status: 200,
        ids: truth,
        echo: [1, 2],
        logprobs: truth.length,
        first: entry?.processed_logprobs[0],
        tokens: truth.length,
      });
      expect(entry?.faults ?? []).toEqual(kind === 'http_429' ? [] : [kind]);
    },
  );
});
