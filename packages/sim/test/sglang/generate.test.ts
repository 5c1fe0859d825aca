import { describe, expect, it } from 'vitest';
import { ROUTED_LAYERS, ROUTED_TOP_K, routedRows } from '../../src/routed-experts.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';
import { post } from '../sse.ts';
import { entryOf, type Generated, generate, promptOf, start, stream } from './client.ts';

const vocabulary = bundledVocabulary();
const { imEnd } = vocabulary.special;
const long = { max_new_tokens: 200, sampling_seed: 5 };

describe('/generate', () => {
  it("sends the ledger's content, which the oracle confirms", async () => {
    const sim = await start();
    const ids = await promptOf(sim);
    const reply = await generate(
      sim,
      {
        input_ids: ids,
        rid: 'call-1',
        return_logprob: true,
        top_logprobs_num: 2,
        return_prompt_token_ids: true,
        sampling_params: { ...long, temperature: 0.7 },
      },
      { 'x-smg-routing-key': 'ses-1' },
    );
    const entry = entryOf(sim, 'call-1');
    const meta = reply.meta_info;
    expect(entry).toMatchObject({ session_id: 'ses-1', endpoint: '/generate', prompt_form: 'ids' });
    expect(entry.prompt_ids).toEqual(ids);
    expect(reply.prompt_token_ids).toEqual(ids);
    expect(reply.output_ids).toEqual(entry.response_ids);
    expect(meta.output_token_logprobs).toEqual(
      entry.response_ids.map((id, index) => [entry.processed_logprobs[index], id, null]),
    );
    expect(meta.output_token_logprobs_length).toBe(entry.response_ids.length);
    expect(meta.input_token_logprobs).toEqual([]);
    expect(meta).toMatchObject({
      id: 'call-1',
      finish_reason: { type: 'stop', matched: imEnd },
      prompt_tokens: ids.length,
      completion_tokens: entry.response_ids.length,
      cached_tokens: 0,
      weight_version: 'v0',
      weight_versions: entry.version_spans,
      num_retractions: 0,
    });
    for (const [index, top] of (meta.output_top_logprobs ?? []).entries()) {
      expect(top[0]?.[0]).toBeGreaterThanOrEqual(meta.output_token_logprobs?.[index]?.[0] ?? 0);
    }
    const expected = sim.oracle(entry.prompt_ids, entry.response_ids, entry.version_spans, entry.params);
    entry.processed_logprobs.forEach((logprob, index) => {
      expect(logprob).toBeCloseTo(expected.processed[index] as number, 9);
    });
    expect(reply.text).toBe(vocabulary.decode(entry.response_ids, { skipSpecial: true }));
  });

  it('reports raw logprobs in the raw_logprobs mode', async () => {
    const sim = await start({ logprobsMode: 'raw_logprobs' });
    const input_ids = await promptOf(sim);
    const sampling_params = { ...long, temperature: 0.5 };
    const reply = await generate(sim, { input_ids, rid: 'a', return_logprob: true, sampling_params });
    const entry = entryOf(sim, 'a');
    expect(reply.meta_info.output_token_logprobs?.map(([logprob]) => logprob)).toEqual(entry.raw_logprobs);
    expect(entry.raw_logprobs).not.toEqual(entry.processed_logprobs);
  });

  it('accepts text and sends logprobs only on request', async () => {
    const sim = await start();
    const reply = await generate(sim, { text: 'failing test', rid: 'a', sampling_params: { max_new_tokens: 3 } });
    const entry = entryOf(sim, 'a');
    expect(entry.prompt_ids).toEqual(vocabulary.encode('failing test'));
    expect(entry.prompt_form).toBe('text');
    expect(reply.prompt_token_ids).toBeUndefined();
    expect(reply.meta_info.output_token_logprobs).toBeUndefined();
    expect(reply.meta_info.finish_reason).toEqual({ type: 'length', length: 3 });
  });

  it("ignores the model's sampling defaults and limits a reply to 128 tokens", async () => {
    const sim = await start({ generationConfig: { temperature: 0.6, top_k: 20 } });
    await generate(sim, { text: 'failing test', rid: 'a' });
    expect(entryOf(sim, 'a').params).toMatchObject({ temperature: 1, topK: 0, maxTokens: 128 });
    await generate(sim, { text: 'failing test', rid: 'b', sampling_params: { top_k: 5, top_p: 0.5, min_p: 0.1 } });
    expect(entryOf(sim, 'b').params).toMatchObject({ topK: 5, topP: 0.5, minP: 0.1 });
    await generate(sim, { text: 'failing test', rid: 'c', sampling_params: { top_k: -1 } });
    expect(entryOf(sim, 'c').params.topK).toBe(0);
  });

  it('samples the same reply for the same seed', async () => {
    const sim = await start();
    const input_ids = await promptOf(sim);
    const postOk = (seed: number): Promise<Generated> =>
      generate(sim, { input_ids, sampling_params: { ...long, sampling_seed: seed } });
    expect((await postOk(7)).output_ids).toEqual((await postOk(7)).output_ids);
    expect((await postOk(7)).output_ids).not.toEqual((await postOk(8)).output_ids);
  });

  it('shows the end of a reply only when it is neither trimmed nor skipped', async () => {
    const sim = await start({ scenarios: [{ name: 'one', rules: [{ reply: [{ text: 'one two three' }] }] }] });
    const postOk = async (sampling: object): Promise<string> =>
      (await generate(sim, { text: 'hi', sampling_params: sampling })).text;
    expect(await postOk({})).toBe('one two three');
    expect(await postOk({ no_stop_trim: true })).toBe('one two three');
    expect(await postOk({ no_stop_trim: true, skip_special_tokens: false })).toBe('one two three<|im_end|>');
    expect(await postOk({ stop: [' three'] })).toBe('one two');
    expect(await postOk({ stop: ' three', no_stop_trim: true })).toBe('one two three');
    const [first = 0] = vocabulary.encode('one two three');
    const stopped = await generate(sim, { text: 'hi', sampling_params: { stop_token_ids: [first] } });
    expect(stopped.meta_info.finish_reason).toEqual({ type: 'stop', matched: first });
    expect(stopped.output_ids).toEqual([first]);
    const endless = await generate(sim, { text: 'hi', sampling_params: { ignore_eos: true, max_new_tokens: 20 } });
    expect(endless.meta_info.finish_reason).toEqual({ type: 'length', length: 20 });
  });

  it('reports a matched stop string and keeps all of its ids', async () => {
    const sim = await start({ scenarios: [{ name: 'one', rules: [{ reply: [{ text: 'one two three' }] }] }] });
    const reply = await generate(sim, { text: 'hi', rid: 'a', sampling_params: { stop: ['two'] } });
    expect(reply.meta_info.finish_reason).toEqual({ type: 'stop', matched: 'two' });
    expect(reply.text).toBe('one ');
    expect(reply.output_ids).toEqual(entryOf(sim, 'a').response_ids);
    expect(vocabulary.decode(reply.output_ids ?? [])).toContain('two');
  });

  it("sends the text of tokens on request, including the prompt's last one", async () => {
    const sim = await start();
    const input_ids = vocabulary.encode('failing test');
    const reply = await generate(sim, {
      input_ids,
      return_logprob: true,
      return_text_in_logprobs: true,
      logprob_start_len: input_ids.length - 1,
    });
    const last = input_ids.at(-1) as number;
    expect(reply.meta_info.input_token_logprobs).toEqual([[null, last, vocabulary.decode([last])]]);
    const texts = reply.meta_info.output_token_logprobs?.map(([, id, text]) => [id, text]);
    expect(texts).toEqual(reply.output_ids?.map((id) => [id, vocabulary.decode([id])]));
  });

  it('sends routed experts as bare int32 numbers from the requested position on', async () => {
    const sim = await start({ routedExperts: true });
    const input_ids = await promptOf(sim);
    const postOk = { input_ids, rid: 'a', return_routed_experts: true, routed_experts_start_len: input_ids.length };
    const reply = await generate(sim, postOk);
    const entry = entryOf(sim, 'a');
    const data = Buffer.from(reply.meta_info.routed_experts ?? '', 'base64');
    const { rows, values } = routedRows(entry, input_ids.length);
    expect(rows).toBe(entry.response_ids.length - 1);
    expect(data.length).toBe(4 * rows * ROUTED_LAYERS * ROUTED_TOP_K);
    expect(values.map((_, index) => data.readInt32LE(4 * index))).toEqual(values);
    expect((await generate(sim, { input_ids })).meta_info.routed_experts).toBeUndefined();
    const plain = await start();
    expect((await generate(plain, postOk)).meta_info.routed_experts).toBeUndefined();
  });

  it('finds an earlier prompt in its cache unless salt or key differ', async () => {
    const sim = await start();
    const input_ids = await promptOf(sim);
    const cached = async (more: object): Promise<number> =>
      (await generate(sim, { input_ids, ...more })).meta_info.cached_tokens;
    expect(await cached({})).toBe(0);
    expect(await cached({})).toBeGreaterThan(0);
    expect(await cached({ cache_salt: 'v1' })).toBe(0);
    expect(await cached({ cache_salt: 'v1' })).toBeGreaterThan(0);
    expect(await cached({ cache_salt: 'v1', extra_key: 'lora' })).toBe(0);
  });

  it('samples only replies that satisfy a schema', async () => {
    const rule = {
      reply: [{ choice: { id: 'c', options: [{ reply: [{ text: '{"a":1}' }] }, { reply: [{ text: 'no' }] }] } }],
    };
    const sim = await start({ scenarios: [{ name: 'json', rules: [rule] }] });
    const schema = { type: 'object', required: ['a'] };
    for (const json_schema of [schema, JSON.stringify(schema)]) {
      for (let sampling_seed = 0; sampling_seed < 8; sampling_seed++) {
        const reply = await generate(sim, { text: 'hi', sampling_params: { json_schema, sampling_seed } });
        expect(reply.text).toBe('{"a":1}');
      }
    }
    const refused = await post(`${sim.url}/generate`, {
      text: 'hi',
      sampling_params: { json_schema: { type: 'array' } },
    });
    expect(refused.status).toBe(400);
    expect(await refused.text()).toContain('json_schema');
  });
});

describe('streams of /generate', () => {
  for (const incrementalStreaming of [false, true]) {
    it(`are ${incrementalStreaming ? 'incremental with' : 'cumulative without'} incremental streaming`, async () => {
      const sim = await start({ incrementalStreaming, streamInterval: 3 });
      const input_ids = await promptOf(sim);
      const body = { input_ids, return_logprob: true, return_prompt_token_ids: true, sampling_params: long };
      const plain = await generate(sim, body);
      const chunks = await stream<Generated>(sim, '/generate', body);
      expect(chunks.length).toBeGreaterThan(5);
      const last = chunks.at(-1) as Generated;
      const whole = incrementalStreaming
        ? {
            text: chunks.map(({ text }) => text).join(''),
            ids: chunks.flatMap(({ output_ids }) => output_ids ?? []),
            logprobs: chunks.flatMap(({ meta_info: meta }) => meta.output_token_logprobs ?? []),
          }
        : { text: last.text, ids: last.output_ids, logprobs: last.meta_info.output_token_logprobs };
      expect(whole).toEqual({
        text: plain.text,
        ids: plain.output_ids,
        logprobs: plain.meta_info.output_token_logprobs,
      });
      let total = 0;
      for (const [index, { output_ids: ids = [], meta_info: meta, prompt_token_ids: prompt }] of chunks.entries()) {
        total = incrementalStreaming ? total + ids.length : ids.length;
        expect(meta.completion_tokens).toBe(total);
        expect(meta.output_token_logprobs).toHaveLength(ids.length);
        expect(meta.output_token_logprobs_length).toBe(total);
        expect(prompt).toEqual(input_ids);
        expect(meta.finish_reason === null).toBe(index < chunks.length - 1);
      }
      expect(last.meta_info).toMatchObject({
        finish_reason: plain.meta_info.finish_reason,
        weight_versions: plain.meta_info.weight_versions,
      });
    });
  }
});

describe('refusals of /generate', () => {
  const refusals: readonly [what: string, body: object, words: string][] = [
    ['neither text nor ids', {}, 'Either text or input_ids'],
    ['both text and ids', { text: 'a', input_ids: [1] }, 'Either text or input_ids'],
    ['a batch of ids', { input_ids: [[1], [2]] }, 'batches are not supported'],
    ['a batch of texts', { text: ['a'] }, 'batches are not supported'],
    ['an id outside the vocabulary', { input_ids: [1_000_000] }, '1000000'],
    ['several replies', { text: 'a', sampling_params: { n: 2 } }, 'sampling_params.n'],
    ['a sampling parameter that it does not know', { text: 'a', sampling_params: { max_tokens: 3 } }, 'max_tokens'],
    ['logprobs of the prompt', { text: 'some words', return_logprob: true, logprob_start_len: 0 }, 'logprob_start_len'],
    ['a field that a scripted policy cannot honour', { text: 'a', lora_path: 'x' }, 'lora_path'],
    ['a schema that is not valid JSON', { text: 'a', sampling_params: { json_schema: '{' } }, 'json_schema'],
  ];
  for (const [what, body, words] of refusals) {
    it(what, async () => {
      const sim = await start();
      const response = await post(`${sim.url}/generate`, body);
      const { error } = (await response.json()) as { error: { message: string } };
      expect(response.status).toBe(400);
      expect(error.message).toContain(words);
      expect(sim.ledger.total).toBe(0);
    });
  }

  it('concern a prompt that exceeds the context length, which a stream reports in an event', async () => {
    const sim = await start({ maxModelLen: 32 });
    const input_ids = new Array<number>(32).fill(5);
    const response = await post(`${sim.url}/generate`, { input_ids });
    expect(response.status).toBe(400);
    const error = { message: "The input (32 tokens) is longer than the model's context length (32 tokens)." };
    expect(await response.json()).toEqual({ error });
    expect(await stream(sim, '/generate', { input_ids })).toEqual([{ error }]);
    const tooMany = await post(`${sim.url}/generate`, { input_ids: [5, 5], sampling_params: { max_new_tokens: 31 } });
    expect(tooMany.status).toBe(400);
    expect(await tooMany.text()).toContain('a total of 33 tokens');
  });

  it('concern unknown fields on a strict server, while another server ignores them', async () => {
    const strict = await start({ strict: true });
    const body = { text: 'a', return_token_ids: true };
    const response = await post(`${strict.url}/generate`, body);
    expect(response.status).toBe(400);
    expect(await response.text()).toContain('return_token_ids');
    await generate(strict, { text: 'a', routed_dp_rank: 0 });
    await generate(await start(), body);
  });
});
