import { describe, expect, it } from 'vitest';
import type { FaultInput, FaultKind, SimServer } from '../../src/index.ts';
import { post } from '../sse.ts';
import {
  assembled,
  type ChatReply,
  chat,
  entryOf,
  eventsOf,
  type Generated,
  generate,
  postOk,
  promptOf,
  start,
  stream,
  tools,
  until,
  user,
} from './client.ts';

const CHAT = '/v1/chat/completions';
const sampling_params = { max_new_tokens: 200, sampling_seed: 5 };
const wishes = { return_token_ids: true, return_meta_info: true, return_output_ids_in_sglext: true, logprobs: true };

function faulty(...faults: FaultInput[]): Promise<SimServer> {
  return start({ faults });
}

async function generated(sim: SimServer, rid = 'a'): Promise<Generated> {
  const input_ids = await promptOf(sim);
  return generate(sim, { input_ids, rid, return_logprob: true, return_prompt_token_ids: true, sampling_params });
}

describe('faults before the first token', () => {
  const statuses: readonly [FaultKind, number][] = [
    ['http_400_context', 400],
    ['http_429', 429],
    ['http_500', 500],
    ['http_503', 503],
  ];
  for (const [kind, status] of statuses) {
    it(`${kind}: each route replies ${status} in its own form`, async () => {
      const sim = await faulty({ kind });
      const native = await post(`${sim.url}/generate`, { text: 'hi' });
      const openAi = await post(`${sim.url}${CHAT}`, { messages: [user] });
      const completion = await post(`${sim.url}/v1/completions`, { prompt: 'hi' });
      expect([native.status, openAi.status, completion.status]).toEqual([status, status, status]);
      expect(await native.json()).toEqual({ error: { message: expect.any(String) } });
      expect(await openAi.json()).toMatchObject({ object: 'error', message: expect.any(String), code: status });
      if (kind === 'http_429') expect(native.headers.get('retry-after')).toBe('1');
      expect(sim.ledger.total).toBe(0);
    });
  }

  it('error_body_200, garbage and reset_before: sends nothing that could pass as a reply', async () => {
    const sim = await faulty(
      { kind: 'error_body_200', on_calls: [1, 2] },
      { kind: 'garbage', on_calls: [3, 4] },
      { kind: 'reset_before', on_calls: [5] },
    );
    expect(await postOk(sim, '/generate', { text: 'hi' })).toHaveProperty('error');
    const [event] = await stream<object>(sim, CHAT, { messages: [user] });
    expect(event).toMatchObject({ object: 'error', code: 500 });
    expect(await (await post(`${sim.url}/generate`, { text: 'hi' })).text()).toBe('<html>upstream');
    const cut = await (await post(`${sim.url}${CHAT}`, { messages: [user], stream: true })).text();
    expect(() => eventsOf(cut)).toThrow();
    await expect(post(`${sim.url}/generate`, { text: 'hi' })).rejects.toThrow();
    expect(sim.ledger.total).toBe(0);
  });
});

describe('faults that misreport tokens', () => {
  it('missing_ids: sends logprobs but no ids', async () => {
    const sim = await faulty({ kind: 'missing_ids' });
    const reply = await generated(sim);
    expect(reply).not.toHaveProperty('output_ids');
    expect(reply).not.toHaveProperty('prompt_token_ids');
    const entry = entryOf(sim, 'a');
    expect(reply.meta_info.output_token_logprobs).toEqual(
      entry.processed_logprobs.map((logprob) => [logprob, null, null]),
    );
    const talk = await chat(sim, { ...wishes, rid: 'b' });
    expect(talk.choices[0]).not.toHaveProperty('token_ids');
    expect(talk.choices[0]).not.toHaveProperty('prompt_token_ids');
    expect(talk).not.toHaveProperty('sglext');
    const chunks = await stream<ChatReply>(sim, CHAT, { messages: [user], return_token_ids: true });
    expect(assembled(chunks).ids).toEqual([]);
  });

  it('foreign_ids: sends ids and logprobs of another call', async () => {
    const sim = await faulty({ kind: 'foreign_ids', on_calls: [2] });
    await generate(sim, { text: 'hi', rid: 'other' });
    const other = entryOf(sim, 'other');
    const reply = await generated(sim);
    expect(reply.prompt_token_ids).toEqual(other.prompt_ids);
    expect(reply.output_ids?.slice(0, other.response_ids.length)).toEqual(other.response_ids);
    expect(reply.output_ids).toHaveLength(entryOf(sim, 'a').response_ids.length);
    expect(reply.meta_info.output_token_logprobs?.map(([, id]) => id)).toEqual(reply.output_ids);
  });

  it('echo_other_prompt: changes one id of the prompt and nothing of the reply', async () => {
    const sim = await faulty({ kind: 'echo_other_prompt' });
    const reply = await generated(sim);
    const entry = entryOf(sim, 'a');
    const differ = entry.prompt_ids.filter((id, index) => id !== reply.prompt_token_ids?.[index]);
    expect(differ).toHaveLength(1);
    expect(reply.output_ids).toEqual(entry.response_ids);
    const talk = await chat(sim, { rid: 'b', return_token_ids: true, return_input_ids_in_sglext: true });
    expect(talk.choices[0]?.prompt_token_ids).not.toEqual(entryOf(sim, 'b').prompt_ids);
    expect(talk.sglext?.input_ids).toEqual(talk.choices[0]?.prompt_token_ids);
  });

  it('logprob faults: send NaN, null, a positive number, one too few, or all one position late', async () => {
    const kinds = [
      'logprob_nan',
      'logprob_null',
      'logprob_positive',
      'logprobs_length',
      'off_by_one_logprobs',
    ] as const;
    const sim = await faulty(...kinds.map((kind, index) => ({ kind, on_calls: [index + 1] })));
    const input_ids = await promptOf(sim);
    const native = { input_ids, return_logprob: true, sampling_params };
    expect(await (await post(`${sim.url}/generate`, native)).text()).toContain('"output_token_logprobs":[[NaN,');
    expect((await generated(sim, 'null')).meta_info.output_token_logprobs?.[0]?.[0]).toBeNull();
    expect((await generated(sim, 'positive')).meta_info.output_token_logprobs?.[0]?.[0]).toBeGreaterThan(0);
    const short = await generated(sim, 'short');
    expect(short.output_ids).toHaveLength((short.meta_info.output_token_logprobs?.length ?? 0) + 1);
    const off = await generated(sim, 'off');
    expect(off.output_ids).toEqual(entryOf(sim, 'off').response_ids);
    expect(off.meta_info.output_token_logprobs?.slice(1).map(([, id]) => id)).toEqual(off.output_ids?.slice(0, -1));
  });

  it('usage_mismatch: reports more tokens than were sampled', async () => {
    const sim = await faulty({ kind: 'usage_mismatch' });
    const reply = await generated(sim);
    expect(reply.meta_info.completion_tokens).toBeGreaterThan(reply.output_ids?.length ?? 0);
    const talk = await chat(sim, wishes);
    expect(talk.usage?.completion_tokens).toBeGreaterThan(talk.choices[0]?.token_ids?.length ?? 0);
  });

  it('stream_lost_ids: removes the ids of chunks without text', async () => {
    const sim = await faulty({ kind: 'stream_lost_ids' });
    const chunks = await stream<ChatReply>(sim, CHAT, {
      messages: [user],
      tools,
      seed: 5,
      rid: 'a',
      return_token_ids: true,
      return_output_ids_in_sglext: true,
    });
    const sampled = entryOf(sim, 'a').response_ids;
    expect(assembled(chunks).ids.length).toBeLessThan(sampled.length);
    expect(chunks.find(({ sglext }) => sglext)?.sglext?.output_ids?.[0]?.length).toBeLessThan(sampled.length);
    const input_ids = await promptOf(sim);
    const body = { input_ids, rid: 'b', return_logprob: true, sampling_params };
    const last = (await stream<Generated>(sim, '/generate', body)).at(-1);
    expect(last?.output_ids?.length).toBeLessThan(last?.meta_info.completion_tokens ?? 0);
  });

  it('model_changed and version_changed: report another model, and sample with other weights', async () => {
    const sim = await faulty({ kind: 'model_changed', on_calls: [1] }, { kind: 'version_changed', on_calls: [2] });
    expect((await chat(sim, { model: 'floe-sim' })).model).toBe('floe-sim-changed-1');
    const reply = await generated(sim);
    expect(reply.meta_info).toMatchObject({
      weight_version: 'v0',
      weight_versions: [{ version: 'v0', start: 0, end: reply.output_ids?.length }],
    });
    expect(entryOf(sim, 'a').version_spans.map(({ version }) => version)).not.toEqual(['v0']);
  });
});

describe('faults during a reply', () => {
  it('abort: the engine ends the reply by itself', async () => {
    const sim = await faulty({ kind: 'abort', after_tokens: 4 });
    const reply = await generated(sim);
    expect(reply.meta_info.finish_reason).toMatchObject({ type: 'abort' });
    expect(reply.output_ids).toEqual(entryOf(sim, 'a').response_ids);
    expect(reply.output_ids).toHaveLength(4);
  });

  it('stall: the call ends when the client disconnects', async () => {
    const sim = await faulty({ kind: 'stall', after_tokens: 3 });
    const controller = new AbortController();
    const body = JSON.stringify({ messages: [user], rid: 'a' });
    const call = fetch(`${sim.url}${CHAT}`, { method: 'POST', body, signal: controller.signal });
    await until(() => sim.engine.running === 1);
    controller.abort();
    await expect(call).rejects.toThrow();
    await until(() => sim.engine.running === 0 && sim.ledger.total === 1);
    expect(entryOf(sim, 'a').finish_reason).toBe('abort');
    // When a call has been aborted, a new call may use its request id.
    sim.setFaults([]);
    expect((await chat(sim, { rid: 'a' })).id).toBe('a');
  });

  it('reset_mid: resets the connection during whole replies and streams', async () => {
    const sim = await faulty({ kind: 'reset_mid', after_tokens: 3 });
    const input_ids = await promptOf(sim);
    for (const [path, body] of [
      ['/generate', { input_ids }],
      [CHAT, { messages: [user] }],
      ['/v1/completions', { prompt: input_ids }],
    ] as const) {
      for (const streamed of [false, true]) {
        const whole = post(`${sim.url}${path}`, { ...body, stream: streamed }).then((response) => response.text());
        await expect(whole).rejects.toThrow();
      }
    }
    await until(() => sim.ledger.total === 6);
  });

  it('dies_mid_stream: refuses the next connections as well', async () => {
    const sim = await faulty({ kind: 'dies_mid_stream', on_calls: [1], down_calls: 1 });
    const broken = post(`${sim.url}${CHAT}`, { messages: [user], stream: true }).then((response) => response.text());
    await expect(broken).rejects.toThrow();
    await expect(post(`${sim.url}${CHAT}`, { messages: [user] })).rejects.toThrow();
    expect((await post(`${sim.url}${CHAT}`, { messages: [user] })).status).toBe(200);
  });

  it('malformed_tool_call: leaves a call that is not valid JSON in the content', async () => {
    const sim = await faulty({ kind: 'malformed_tool_call' });
    const reply = await chat(sim, { seed: 5, rid: 'a' });
    expect(reply.choices[0]).toMatchObject({ finish_reason: 'stop', message: { tool_calls: null } });
    expect(reply.choices[0]?.message.content).toContain('<tool_call>');
    const whole = assembled(await stream<ChatReply>(sim, CHAT, { messages: [user], tools, seed: 5 }));
    expect(whole.content).toBe(reply.choices[0]?.message.content);
    expect(whole.finish.finish_reason).toBe('stop');
  });

  it('duplicate_call_ids: repeats the ids of the previous reply', async () => {
    const sim = await faulty({ kind: 'duplicate_call_ids', on_calls: [2] });
    const ids = async (): Promise<unknown> =>
      (await chat(sim, { seed: 5 })).choices[0]?.message.tool_calls?.map(({ id }) => id);
    const first = await ids();
    expect(await ids()).toEqual(first);
    expect(await ids()).not.toEqual(first);
  });

  it('chunk_split: sends parts of events that add up to the reply', async () => {
    const sim = await faulty({ kind: 'chunk_split' });
    const chunks = await stream<ChatReply>(sim, CHAT, { messages: [user], tools, rid: 'a', return_token_ids: true });
    expect(assembled(chunks).ids).toEqual(entryOf(sim, 'a').response_ids);
  });
});
