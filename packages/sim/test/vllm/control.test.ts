import { VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import type { SimServer } from '../../src/index.ts';
import { postJson, simStarter, TOOLS, USER } from '../sim-client.ts';
import { type Chunk, events, post } from '../sse.ts';

const start = simStarter({ scaleOut: true, reportVersions: 'all' });
const LONG = [{ name: 'long', rules: [{ reply: [{ think: 500 }] }] }];
const body = { messages: [USER], tools: TOOLS, seed: 5, return_token_ids: true };

const postTo = (sim: SimServer, path: string, sent: object = {}) =>
  postJson<Record<string, unknown> & { error?: { message: string } }>(`${sim.url}${path}`, sent);
const getFrom = async (sim: SimServer, path: string): Promise<unknown> => (await fetch(`${sim.url}${path}`)).json();

/**
 * Waits for the first event of a streamed reply, so that the call is running in the engine. Returns a function that reads the rest of the
 * stream.
 */
async function begun(response: Response): Promise<() => Promise<string>> {
  const reader = response.body?.getReader();
  const first = await reader?.read();
  const decoder = new TextDecoder();
  let text = decoder.decode(first?.value, { stream: true });
  return async () => {
    for (let part = await reader?.read(); part?.done === false; part = await reader?.read()) {
      text += decoder.decode(part.value, { stream: true });
    }
    return text;
  };
}

describe('the control plane', () => {
  it('exists in development mode only', async () => {
    const sim = await start({ devMode: false });
    for (const path of ['/pause', '/resume', '/sleep', '/wake_up', '/update_weights', '/abort_requests']) {
      expect((await postTo(sim, path)).status).toBe(404);
    }
    for (const path of ['/is_paused', '/is_sleeping', '/weight_info']) {
      expect((await fetch(`${sim.url}${path}`)).status).toBe(404);
    }
    expect((await fetch(`${sim.url}/health`)).status).toBe(200);
    expect((await fetch(`${sim.url}/v1/models`)).status).toBe(200);
  });

  it.each([
    ['/v1/chat/completions', body, 'chatcmpl-'],
    ['/v1/completions', { prompt: [5, 6], max_tokens: 400, return_token_ids: true }, 'cmpl-'],
    ['/inference/v1/generate', { token_ids: [5, 6], sampling_params: {} }, 'generate-tokens-'],
  ] as const)('%s: aborts a call by its id with or without prefix, and by a pause', async (path, sent, prefix) => {
    const sim = await start({ scenarios: LONG, tokenDelayMs: 1 });
    for (const stop of [
      () => postTo(sim, '/abort_requests', { request_ids: ['other', 'one'] }),
      () => postTo(sim, '/abort_requests', { request_ids: [`${prefix}one`] }),
      () => postTo(sim, '/abort_requests'),
      () => postTo(sim, '/pause?mode=abort'),
    ]) {
      const sampled = sim.ledger.total;
      const call = postJson<{ choices?: { finish_reason: string; token_ids?: number[] }[] }>(
        `${sim.url}${path}`,
        sent,
        {
          'x-request-id': 'one',
        },
      );
      let ended = false;
      void call.finally(() => {
        ended = true;
      });
      while (sim.engine.running === 0 && !ended) await new Promise((resolve) => setImmediate(resolve));
      expect((await stop()).status).toBe(200);
      const { status, body: reply } = await call;
      expect(status).toBe(200);
      expect(sim.ledger.total).toBe(sampled + 1);
      const entry = sim.ledger.entries().at(-1);
      expect(entry).toMatchObject({ finish_reason: 'abort', endpoint: path, request_id: 'one' });
      if (reply.choices !== undefined) {
        expect(reply.choices[0]?.finish_reason).toBe('abort');
        expect(reply.choices[0]?.token_ids).toEqual(entry?.response_ids);
      }
    }
    expect(await getFrom(sim, '/is_paused')).toEqual({ is_paused: true });
  });

  it('clears the cache in a pause unless clear_cache is false or the mode is keep', async () => {
    const sim = await start();
    await post(`${sim.url}/v1/chat/completions`, body);
    const size = sim.engine.cache.size;
    expect(size).toBeGreaterThan(0);
    for (const [query, left] of [
      ['mode=keep', size],
      ['mode=abort&clear_cache=false', size],
      ['mode=wait', 0],
    ] as const) {
      expect((await postTo(sim, `/pause?${query}`)).body).toEqual({ status: 'paused' });
      expect(sim.engine.cache.size).toBe(left);
      expect((await postTo(sim, '/resume')).body).toEqual({ status: 'resumed' });
    }
    for (const query of ['mode=hard', 'clear_cache=maybe']) {
      expect((await postTo(sim, `/pause?${query}`)).status).toBe(400);
    }
    expect(await getFrom(sim, '/is_paused')).toEqual({ is_paused: false });
  });

  it('keeps a reply during a pause and samples its rest with weights updated meanwhile', async () => {
    const sim = await start({ scenarios: LONG, tokenDelayMs: 1 });
    const rest = await begun(await post(`${sim.url}/v1/chat/completions`, { ...body, max_tokens: 60, stream: true }));
    await postTo(sim, '/pause?mode=keep&clear_cache=false');
    await postTo(sim, '/update_weights', { version: 'v1' });
    await postTo(sim, '/resume');
    const parts = (events(await rest()) as Chunk[]).flatMap(({ choices }) => choices);
    const entry = sim.ledger.entries()[0];
    expect(entry?.version_spans.at(-1)).toMatchObject({ version: 'v1', end: 60 });
    expect(parts.at(-1)?.weight_versions).toEqual(entry?.version_spans);
    expect(parts.flatMap(({ token_ids }) => token_ids ?? [])).toEqual(entry?.response_ids);
  });

  it('loses its cache in sleep and restores its memory part by part', async () => {
    const sim = await start();
    await post(`${sim.url}/v1/chat/completions`, body);
    expect((await postTo(sim, '/sleep?level=1')).status).toBe(200);
    expect(await getFrom(sim, '/is_sleeping')).toEqual({ is_sleeping: true });
    expect(sim.engine.cache.size).toBe(0);
    const waiting = post(`${sim.url}/v1/chat/completions`, body);
    expect((await postTo(sim, '/resume')).status).toBe(200);
    await postTo(sim, '/wake_up?tags=weights');
    expect(await getFrom(sim, '/is_sleeping')).toEqual({ is_sleeping: true });
    expect(sim.engine.paused).toBe(true);
    expect((await postTo(sim, '/wake_up?tags=gpu')).status).toBe(400);
    await postTo(sim, '/wake_up?tags=kv_cache');
    expect(await getFrom(sim, '/is_sleeping')).toEqual({ is_sleeping: false });
    expect((await waiting).status).toBe(200);
    expect(sim.ledger.entries().every(({ version_spans }) => version_spans[0]?.version === 'v0')).toBe(true);
  });

  it('loses its weights without an announcement in deep sleep, and stays paused when it was paused before', async () => {
    const sim = await start();
    await postTo(sim, '/pause?mode=wait');
    await postTo(sim, '/sleep?level=2');
    await postTo(sim, '/wake_up');
    expect(sim.engine.paused).toBe(true);
    await postTo(sim, '/resume');
    const reply = (await postJson<Chunk>(`${sim.url}/v1/chat/completions`, body)).body;
    expect(reply.choices[0]?.weight_versions).toMatchObject([{ version: 'v0' }]);
    expect(sim.ledger.entries()[0]?.version_spans[0]?.version).not.toBe('v0');
    expect((await postTo(sim, '/sleep?level=3')).status).toBe(400);
  });

  it('updates weights in four phases that take effect at the end', async () => {
    const sim = await start();
    expect((await postTo(sim, '/start_weight_update')).status).toBe(400);
    expect((await postTo(sim, '/init_weight_transfer_engine')).status).toBe(400);
    expect((await postTo(sim, '/init_weight_transfer_engine', { init_info: { backend: 'nccl' } })).status).toBe(200);
    expect((await postTo(sim, '/update_weights', { update_info: {} })).status).toBe(400);
    expect((await postTo(sim, '/finish_weight_update')).status).toBe(400);
    expect((await postTo(sim, '/start_weight_update')).status).toBe(200);
    expect((await postTo(sim, '/start_weight_update')).status).toBe(400);
    const logits = { caller: { words: [-3, 3] } };
    expect((await postTo(sim, '/update_weights', { update_info: { names: ['a'], logits } })).status).toBe(200);
    expect((await postTo(sim, '/update_weights', { update_info: { names: ['b'] } })).status).toBe(200);
    expect(await getFrom(sim, '/weight_info')).toEqual({ weight_version: 'v0' });
    expect((await postTo(sim, '/finish_weight_update', { weight_version: 'v1' })).status).toBe(200);
    expect(await getFrom(sim, '/weight_info')).toEqual({ weight_version: 'v1' });
    expect(await getFrom(sim, '/__sim/weights')).toMatchObject({ version: 'v1', logits });
  });

  it('continues to report the old version after an update without a name', async () => {
    const sim = await start();
    await postTo(sim, '/init_weight_transfer_engine', { init_info: {} });
    await postTo(sim, '/start_weight_update');
    await postTo(sim, '/finish_weight_update');
    expect(await getFrom(sim, '/weight_info')).toEqual({ weight_version: 'v0' });
    expect(await getFrom(sim, '/__sim/weights')).not.toMatchObject({ version: 'v0' });
    await postTo(sim, '/update_weight_version', { new_version: 'v1' });
    expect(await getFrom(sim, '/weight_info')).toEqual({ weight_version: 'v1' });
  });

  it('discards a failed update and changes nothing', async () => {
    const sim = await start();
    await postTo(sim, '/init_weight_transfer_engine', { init_info: {} });
    await postTo(sim, '/start_weight_update');
    await postTo(sim, '/update_weights', { update_info: { logits: { nobody: { x: [1] } } } });
    const failed = await postTo(sim, '/finish_weight_update', { weight_version: 'v1' });
    expect(failed.status).toBe(400);
    expect(failed.body.error?.message).toMatch(/logits\.nobody\.x/);
    expect(await getFrom(sim, '/weight_info')).toEqual({ weight_version: 'v0' });
    expect((await postTo(sim, '/start_weight_update')).status).toBe(200);
  });

  it('calls methods of its worker and fails for an unknown one', async () => {
    const sim = await start();
    expect((await postTo(sim, '/collective_rpc', { method: 'update_weights', args: ['v7'] })).body).toEqual({
      results: [null],
    });
    expect(await getFrom(sim, '/weight_info')).toEqual({ weight_version: 'v7' });
    expect((await postTo(sim, '/collective_rpc', { method: 'reset_prefix_cache' })).body).toEqual({ results: [true] });
    expect((await postTo(sim, '/collective_rpc', { method: 'rm' })).status).toBe(500);
    expect((await postTo(sim, '/collective_rpc', { args: [] })).status).toBe(400);
    expect(await getFrom(sim, '/get_world_size?include_dp=true')).toEqual({ world_size: 1 });
  });
});

describe('a strict server', () => {
  it.each([
    ['/v1/chat/completions', body],
    ['/v1/completions', { prompt: 'x' }],
    ['/inference/v1/generate', { token_ids: [1], sampling_params: {} }],
    ['/v1/chat/completions/render', body],
    ['/tokenize', { prompt: 'x' }],
  ])('%s: refuses a field that vLLM does not have', async (path, sent) => {
    const sim = await start({ strict: true });
    expect((await postJson(`${sim.url}${path}`, sent)).status).toBe(200);
    const { status, body: refused } = await postJson<Chunk>(`${sim.url}${path}`, { ...sent, input_ids: [1] });
    expect(status).toBe(400);
    expect(refused.error).toMatchObject({ message: 'Unsupported parameter: input_ids', param: 'input_ids' });
    const lax = await start();
    expect((await postJson(`${lax.url}${path}`, { ...sent, input_ids: [1] })).status).toBe(200);
  });

  it('checks sampling parameters and chat requests as well', async () => {
    const sim = await start({ strict: true });
    const generated = { token_ids: [1], sampling_params: { max_new_tokens: 3 } };
    expect((await postJson(`${sim.url}/inference/v1/generate`, generated)).status).toBe(400);
    const rendered = await postJson<object>(`${sim.url}/v1/chat/completions/render`, body);
    expect((await postJson(`${sim.url}/inference/v1/generate`, rendered.body)).status).toBe(200);
    const derender = {
      generate_response: { choices: [{ index: 0, token_ids: [5] }] },
      chat_request: { ...body, rid: '1' },
    };
    expect((await postJson(`${sim.url}/v1/chat/completions/derender`, derender)).status).toBe(400);
  });
});

describe('the speed setting', () => {
  it('scales all delays, and prompts cost time for uncached tokens only', async () => {
    const durations: number[][] = [];
    for (const speed of [1, 0.5]) {
      const clock = new VirtualClock();
      const sim = await start({ clock, speed, tokenDelayMs: 10, firstTokenDelayMs: 7, prefillTokenDelayMs: 2 });
      const { tokens } = (await postJson<{ tokens: number[] }>(`${sim.url}/tokenize`, body)).body;
      const times: number[] = [];
      for (let i = 0; i < 2; i++) {
        let done = false;
        const call = post(`${sim.url}/v1/chat/completions`, { ...body, max_tokens: 5 }).then(() => {
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
      const cached = Math.floor((tokens.length - 1) / 16) * 16;
      expect(times).toEqual([57 + 2 * tokens.length, 57 + 2 * (tokens.length - cached)].map((ms) => ms / speed));
      durations.push(times);
    }
    expect(durations[1]).toEqual(durations[0]?.map((ms) => 2 * ms));
  });
});
