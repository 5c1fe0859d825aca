import { VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import type { SimServer } from '../../src/index.ts';
import { post } from '../sse.ts';
import {
  chat,
  entryOf,
  type Generated,
  generate,
  LiveStream,
  passTime,
  postOk,
  promptOf,
  start,
  until,
} from './client.ts';

const long = { max_new_tokens: 200, sampling_seed: 5 };
const logits = { 'failing-test': { 'first-step': [3, -3] } };
const disk = { model_path: '/weights/1', weight_version: 'v1', logits };

function statusOf(sim: SimServer, path: string, body: object = {}): Promise<number> {
  return post(`${sim.url}${path}`, body).then(({ status }) => status);
}

async function reported(sim: SimServer, path: string): Promise<Record<string, unknown>> {
  return (await (await fetch(`${sim.url}${path}`)).json()) as Record<string, unknown>;
}

describe('/abort_request', () => {
  it('ends calls whose id begins with the given one, with the tokens so far', async () => {
    const sim = await start({ faults: [{ kind: 'stall', after_tokens: 5 }] });
    const input_ids = await promptOf(sim);
    const calls = ['ses-1/a', 'ses-1/b', 'ses-2/a'].map((rid) =>
      generate(sim, { input_ids, rid, return_logprob: true, sampling_params: long }),
    );
    const talk = chat(sim, { rid: 'ses-1/c', return_token_ids: true });
    await until(() => sim.engine.running === 4);
    expect(await statusOf(sim, '/abort_request', { rid: 'ses-1' })).toBe(200);
    for (const [index, rid] of ['ses-1/a', 'ses-1/b'].entries()) {
      const reply = await (calls[index] as Promise<Generated>);
      const entry = entryOf(sim, rid);
      expect(reply.meta_info.finish_reason).toMatchObject({ type: 'abort' });
      expect(reply.output_ids).toEqual(entry.response_ids);
      expect(reply.meta_info.completion_tokens).toBe(entry.aborted_at);
      expect(reply.meta_info.output_token_logprobs).toHaveLength(entry.response_ids.length);
    }
    const choice = (await talk).choices[0];
    expect(choice).toMatchObject({ finish_reason: 'abort', matched_stop: null });
    expect(choice?.token_ids).toEqual(entryOf(sim, 'ses-1/c').response_ids);
    expect(sim.engine.running).toBe(1);
    expect(await statusOf(sim, '/abort_request', { rid: '' })).toBe(200);
    expect(await statusOf(sim, '/abort_request', { rid: 'unknown' })).toBe(200);
    expect(sim.engine.running).toBe(1);
    expect(await statusOf(sim, '/abort_request', { abort_all: true })).toBe(200);
    expect((await (calls[2] as Promise<Generated>)).meta_info.finish_reason).toMatchObject({ type: 'abort' });
  });

  it('ends a stream with the tokens sampled so far', async () => {
    const sim = await start({ faults: [{ kind: 'stall', after_tokens: 5 }] });
    const live = new LiveStream<Generated>(sim, '/generate', {
      input_ids: await promptOf(sim),
      rid: 'a',
      sampling_params: long,
    });
    await until(() => live.events.length === 5);
    await postOk(sim, '/pause_generation', { mode: 'abort' });
    await until(() => live.ended);
    expect(live.events.at(-1)?.meta_info.finish_reason).toMatchObject({ type: 'abort' });
    expect(live.events.at(-1)?.output_ids).toEqual(entryOf(sim, 'a').response_ids);
  });
});

describe('/pause_generation', () => {
  for (const mode of ['in_place', 'retract'] as const) {
    it(`${mode}: samples the rest of a reply with weights updated during the pause`, async () => {
      const clock = new VirtualClock();
      const sim = await start({ clock, tokenDelayMs: 10 });
      const body = { input_ids: await promptOf(sim), rid: 'a', return_logprob: true, sampling_params: long };
      const live = new LiveStream<Generated>(sim, '/generate', body);
      await passTime(clock, () => live.events.length >= 8);
      await postOk(sim, '/pause_generation', { mode });
      const flushed = await statusOf(sim, '/flush_cache');
      expect(flushed).toBe(mode === 'retract' ? 200 : 400);
      const waiting = post(`${sim.url}/generate`, { text: 'hi', rid: 'b' });
      if (mode === 'in_place') expect(await statusOf(sim, '/update_weights_from_disk', disk)).toBe(400);
      const update = { ...disk, flush_cache: mode === 'retract' };
      const reply = await postOk(sim, '/update_weights_from_disk', update);
      expect(reply).toMatchObject({ success: true, num_paused_requests: 1 });
      expect(live.ended).toBe(false);
      expect(await postOk(sim, '/continue_generation', {})).toMatchObject({ status: 'ok' });
      await passTime(clock, () => live.ended && sim.engine.running === 0);
      const entry = entryOf(sim, 'a');
      const last = live.events.at(-1) as Generated;
      expect(entry.version_spans.map(({ version }) => version)).toEqual(['v0', 'v1']);
      expect(last.meta_info).toMatchObject({
        weight_version: 'v1',
        weight_versions: entry.version_spans,
        num_retractions: mode === 'retract' ? 1 : 0,
      });
      expect(last.output_ids).toEqual(entry.response_ids);
      const expected = sim.oracle(entry.prompt_ids, entry.response_ids, entry.version_spans, entry.params);
      last.meta_info.output_token_logprobs?.forEach(([logprob], index) => {
        expect(logprob).toBeCloseTo(expected.processed[index] as number, 9);
      });
      expect((await waiting).status).toBe(200);
      expect(entryOf(sim, 'b').version_spans.map(({ version }) => version)).toEqual(['v1']);
    });
  }

  it('abort, the default: ends running calls and holds new ones', async () => {
    const sim = await start({ faults: [{ kind: 'stall', after_tokens: 3, on_calls: [1] }] });
    const first = generate(sim, { input_ids: await promptOf(sim), rid: 'a', sampling_params: long });
    await until(() => sim.engine.running === 1);
    // The request has no body, as old clients send it.
    expect((await fetch(`${sim.url}/pause_generation`, { method: 'POST' })).status).toBe(200);
    expect((await first).meta_info.finish_reason).toMatchObject({ type: 'abort' });
    expect(await statusOf(sim, '/flush_cache')).toBe(200);
    expect((await fetch(`${sim.url}/health`)).status).toBe(200);
    expect((await fetch(`${sim.url}/health_generate`)).status).toBe(503);
    let answered = false;
    const second = generate(sim, { text: 'hi', rid: 'b' }).finally(() => {
      answered = true;
    });
    await until(() => sim.engine.running === 1);
    expect(answered).toBe(false);
    // A call that arrives during the pause does not prevent flushing the cache, because it has not been sampled yet.
    expect(await statusOf(sim, '/flush_cache')).toBe(200);
    await postOk(sim, '/continue_generation', {});
    expect((await second).meta_info.finish_reason).toMatchObject({ type: 'stop' });
    expect((await fetch(`${sim.url}/health_generate`)).status).toBe(200);
    expect(await statusOf(sim, '/pause_generation', { mode: 'wait' })).toBe(400);
  });
});

describe('weight updates', () => {
  it('wait for calls in progress and hold new ones when nothing is paused', async () => {
    const clock = new VirtualClock();
    const sim = await start({ clock, tokenDelayMs: 10 });
    const input_ids = await promptOf(sim);
    const first = generate(sim, { input_ids, rid: 'a', sampling_params: long });
    await passTime(clock, () => sim.engine.running === 1);
    const update = postOk(sim, '/update_weights_from_disk', disk);
    await until(() => sim.engine.paused);
    const second = generate(sim, { input_ids, rid: 'b', sampling_params: long });
    let ended = false;
    const all = Promise.all([first, update, second]).finally(() => {
      ended = true;
    });
    await passTime(clock, () => ended);
    await all;
    expect(entryOf(sim, 'a').version_spans.map(({ version }) => version)).toEqual(['v0']);
    expect(entryOf(sim, 'b').version_spans.map(({ version }) => version)).toEqual(['v1']);
    expect(sim.engine.paused).toBe(false);
  });

  it('abort running calls on request, and leave a concurrent pause in effect', async () => {
    const sim = await start({ faults: [{ kind: 'stall', after_tokens: 3, on_calls: [1, 2] }] });
    const input_ids = await promptOf(sim);
    const first = generate(sim, { input_ids, rid: 'a', sampling_params: long });
    await until(() => sim.engine.running === 1);
    await postOk(sim, '/update_weights_from_disk', { ...disk, abort_all_requests: true });
    expect((await first).meta_info.finish_reason).toMatchObject({ type: 'abort' });
    const second = generate(sim, { input_ids, rid: 'b', sampling_params: long });
    await until(() => sim.engine.running === 1);
    const update = postOk(sim, '/update_weights_from_disk', { ...disk, weight_version: 'v2' });
    await until(() => sim.engine.paused);
    await postOk(sim, '/pause_generation', { mode: 'abort' });
    await second;
    await update;
    expect(sim.engine.paused).toBe(true);
    expect(await reported(sim, '/get_model_info')).toMatchObject({ weight_version: 'v2' });
  });

  it('are loaded from disk or a group, or only rename the version', async () => {
    const sim = await start();
    const distributed = { names: ['w'], dtypes: ['bfloat16'], shapes: [[2, 2]], group_name: 'g' };
    await postOk(sim, '/update_weights_from_distributed', { ...distributed, weight_version: 'v1', logits });
    expect(await reported(sim, '/get_model_info')).toMatchObject({ weight_version: 'v1' });
    const current = await reported(sim, '/__sim/weights');
    expect(current).toMatchObject({ version: 'v1', logits });
    await postOk(sim, '/update_weight_version', { new_version: 'step-2' });
    expect(await reported(sim, '/get_server_info')).toMatchObject({ weight_version: 'step-2' });
    // An update without a version name leaves the current version in effect.
    await postOk(sim, '/update_weights_from_disk', { model_path: '/weights/2' });
    expect((await chat(sim, {})).metadata?.weight_version).toBe('step-2');
  });

  it('give the reason of a refusal and change nothing', async () => {
    const sim = await start();
    const refused = async (path: string, body: object): Promise<unknown> => {
      const response = await post(`${sim.url}${path}`, body);
      expect(response.status).toBe(400);
      return response.json();
    };
    const wrong = { ...disk, logits: { nowhere: { x: [1] } } };
    expect(await refused('/update_weights_from_disk', wrong)).toMatchObject({
      success: false,
      message: expect.stringContaining('nowhere'),
    });
    expect(await refused('/update_weights_from_disk', { model_path: 'a', logits })).toMatchObject({ success: false });
    expect(await refused('/update_weights_from_disk', { weight_version: 'v1' })).toMatchObject({ object: 'error' });
    expect(await refused('/update_weights_from_distributed', { weight_version: 'v1' })).toMatchObject({ code: 400 });
    expect(await reported(sim, '/get_model_info')).toMatchObject({ weight_version: 'v0' });
  });
});

describe('the routes that describe the server', () => {
  it('report its parsers, context length and streaming settings', async () => {
    const sim = await start({ maxModelLen: 1_000, incrementalStreaming: true, version: '0.5.15' });
    for (const path of ['/get_server_info', '/server_info']) {
      expect(await reported(sim, path)).toMatchObject({
        tool_call_parser: 'qwen25',
        reasoning_parser: 'qwen3',
        incremental_streaming_output: true,
        context_length: 1_000,
        version: '0.5.15',
        internal_states: [{ weight_version: 'v0' }],
      });
    }
    for (const path of ['/get_model_info', '/model_info']) {
      expect(await reported(sim, path)).toMatchObject({
        model_path: 'floe-sim',
        is_generation: true,
        weight_version: 'v0',
      });
    }
    expect(await reported(sim, '/v1/models')).toMatchObject({
      data: [{ id: 'floe-sim', owned_by: 'sglang', max_model_len: 1_000 }],
    });
  });

  it("count calls and tokens under SGLang's metric names", async () => {
    const sim = await start({ faults: [{ kind: 'stall', on_calls: [3] }] });
    await chat(sim, { rid: 'a' });
    await chat(sim, { rid: 'b' });
    const stalled = generate(sim, { text: 'hi', rid: 'c' });
    await until(() => sim.engine.running === 1);
    expect(await reported(sim, '/v1/loads?include=core')).toMatchObject({
      loads: [{ num_running_reqs: 1, num_waiting_reqs: 0, num_reqs: 1 }],
      aggregate: { total_reqs: 1 },
    });
    expect(await statusOf(sim, '/flush_cache')).toBe(400);
    await postOk(sim, '/pause_generation', { mode: 'retract' });
    await statusOf(sim, '/abort_request', { rid: 'c' });
    await stalled;
    const metrics = await (await fetch(`${sim.url}/metrics`)).text();
    const value = (name: string): number =>
      Number(new RegExp(`^sglang:${name}\\{model_name="floe-sim"\\} (\\S+)$`, 'm').exec(metrics)?.[1]);
    const entries = sim.ledger.entries();
    const sum = (count: (entry: (typeof entries)[number]) => number): number =>
      entries.reduce((total, entry) => total + count(entry), 0);
    expect(value('generation_tokens_total')).toBe(sum(({ response_ids: ids }) => ids.length));
    expect(value('prompt_tokens_total')).toBe(sum(({ prompt_ids: ids }) => ids.length));
    expect(value('num_requests_total')).toBe(3);
    expect(value('num_aborted_requests_total')).toBe(1);
    expect(value('num_retracted_requests_total')).toBe(1);
    expect(value('num_running_reqs')).toBe(0);
    expect(value('cache_hit_rate')).toBeGreaterThan(0);
    expect(metrics).not.toContain('vllm:');
  });

  it('include the ledger and the faults but no routes of vLLM', async () => {
    const sim = await start();
    await chat(sim, { rid: 'a' });
    expect(await reported(sim, '/__sim/ledger?request_id=a')).toMatchObject({
      total: 1,
      entries: [{ request_id: 'a' }],
    });
    expect(await statusOf(sim, '/__sim/faults', { faults: [{ kind: 'http_500' }] })).toBe(200);
    expect(await statusOf(sim, '/generate', { text: 'hi' })).toBe(500);
    expect(await statusOf(sim, '/pause?mode=keep')).toBe(404);
    expect((await fetch(`${sim.url}/generate`)).status).toBe(405);
  });
});
