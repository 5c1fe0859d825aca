import { describe, expect, it } from 'vitest';
import type { SimConfigInput, SimServer } from '../../src/index.ts';
import { TEMPLATE_MODES } from '../../src/template.ts';
import { bundledVocabulary } from '../../src/vocabulary.ts';
import { post } from '../sse.ts';
import {
  assembled,
  type ChatReply,
  chat,
  entryOf,
  promptOf,
  start,
  stream as streamOf,
  tools,
  user,
} from './client.ts';

const vocabulary = bundledVocabulary();
const { imEnd } = vocabulary.special;
const CHAT = '/v1/chat/completions';
const AGES = [
  'meta_info',
  'token_ids',
  'sglext',
  'stream_ids',
] as const satisfies readonly SimConfigInput['sglangAge'][];
const everyWish = {
  return_meta_info: true,
  return_prompt_token_ids: true,
  return_token_ids: true,
  return_input_ids_in_sglext: true,
  return_output_ids_in_sglext: true,
};

function stream(sim: SimServer, body: object, headers?: Record<string, string>): Promise<ChatReply[]> {
  return streamOf<ChatReply>(sim, CHAT, { messages: [user], tools, ...body }, headers);
}

async function refusal(sim: SimServer, body: object): Promise<string> {
  const response = await post(`${sim.url}${CHAT}`, { messages: [user], tools, ...body });
  const error = (await response.json()) as { object: string; message: string; code: number };
  expect(response.status).toBe(400);
  expect(error).toMatchObject({ object: 'error', code: 400 });
  expect(sim.ledger.total).toBe(0);
  return error.message;
}

describe('a chat', () => {
  it("reports the ledger's ids, logprobs and versions", async () => {
    const sim = await start({ routedExperts: true });
    const body = { rid: 'call-1', seed: 5, logprobs: true, top_logprobs: 1, return_routed_experts: true, ...everyWish };
    const reply = await chat(
      sim,
      { ...body, model: 'any-name' },
      { 'x-smg-routing-key': 'ses-1', 'x-request-id': 'no' },
    );
    const entry = entryOf(sim, 'call-1');
    const choice = reply.choices[0];
    expect(entry).toMatchObject({ session_id: 'ses-1', endpoint: CHAT, prompt_form: 'messages' });
    expect(reply).toMatchObject({ id: 'call-1', object: 'chat.completion', model: 'any-name' });
    expect(choice?.prompt_token_ids).toEqual(entry.prompt_ids);
    expect(choice?.token_ids).toEqual(entry.response_ids);
    expect(choice?.logprobs?.content.map(({ logprob }) => logprob)).toEqual(entry.processed_logprobs);
    expect(choice?.meta_info?.output_token_logprobs?.map(([logprob, id]) => [logprob, id])).toEqual(
      entry.response_ids.map((id, index) => [entry.processed_logprobs[index], id]),
    );
    expect(choice?.meta_info?.weight_versions).toEqual(entry.version_spans);
    expect(reply.metadata).toEqual({ weight_version: 'v0', weight_versions: entry.version_spans });
    expect(reply.sglext).toEqual({ input_ids: entry.prompt_ids, output_ids: [entry.response_ids] });
    expect(choice?.meta_info?.routed_experts).toBeDefined();
    const thinking = entry.response_ids.indexOf(vocabulary.special.thinkClose) + 1;
    expect(reply.usage).toEqual({
      prompt_tokens: entry.prompt_ids.length,
      completion_tokens: entry.response_ids.length,
      total_tokens: entry.prompt_ids.length + entry.response_ids.length,
      reasoning_tokens: thinking,
      prompt_tokens_details: { cached_tokens: 0 },
    });
  });

  it('parses thinking and calls from the text and reformats arguments', async () => {
    const sim = await start();
    const reply = await chat(sim, { seed: 5, rid: 'a', return_meta_info: true });
    const choice = reply.choices[0];
    expect(choice?.message.reasoning_content).toMatch(/^\n( [a-z]+){24}\n$/);
    expect(choice?.message.content).toBe("I'll run the test first.");
    expect(choice?.message.tool_calls).toEqual([
      {
        id: expect.stringMatching(/^call_[0-9a-f]+$/),
        index: 0,
        type: 'function',
        function: { name: 'bash', arguments: '{"command": "python test_total.py"}' },
      },
    ]);
    expect(vocabulary.decode(entryOf(sim, 'a').response_ids)).toContain('{"command":"python test_total.py"}');
    expect(choice).toMatchObject({ finish_reason: 'tool_calls', matched_stop: null });
    expect(choice?.meta_info?.finish_reason).toEqual({ type: 'tool_calls', matched: null });
  });

  it('leaves calls in the content without tools, and thinking when separate_reasoning is false', async () => {
    const scenarios = [
      { name: 'one', rules: [{ reply: [{ think: { text: 'Hm.' } }, { call: { tool: 'bash', arguments: {} } }] }] },
    ];
    const sim = await start({ scenarios });
    const none = await chat(sim, { tool_choice: 'none', rid: 'none' });
    expect(vocabulary.decode(entryOf(sim, 'none').prompt_ids)).not.toContain('<tools>');
    expect(none.choices[0]).toMatchObject({ finish_reason: 'stop', matched_stop: imEnd });
    expect(none.choices[0]?.message).toMatchObject({ reasoning_content: '\nHm.\n', tool_calls: null });
    expect(none.choices[0]?.message.content).toContain('<tool_call>');
    const whole = await chat(sim, { separate_reasoning: false, tools: [] });
    expect(whole.choices[0]?.message.reasoning_content).toBeNull();
    expect(whole.choices[0]?.message.content).toContain('<think>\nHm.\n</think>');
    const other = await chat(sim, { tools: [{ type: 'function', function: { name: 'python' } }] });
    expect(other.choices[0]?.message.tool_calls).toBeNull();
    expect(other.choices[0]?.message.content).toContain('<tool_call>');
  });

  it('limits replies by the context length alone without max_tokens and repeats any model name', async () => {
    const sim = await start({ maxModelLen: 150 });
    await chat(sim, { rid: 'a' });
    const { params, prompt_ids: prompt } = entryOf(sim, 'a');
    expect(params.maxTokens).toBe(150 - prompt.length);
    const small = await start({ maxModelLen: 40 });
    expect(await refusal(small, {})).toBe(
      `The input (${prompt.length} tokens) is longer than the model's context length (40 tokens).`,
    );
  });

  it('uses the sampling defaults of the generation config', async () => {
    const sim = await start({ generationConfig: { temperature: 0.6, top_k: 20 } });
    await chat(sim, { rid: 'a' });
    await chat(sim, { rid: 'b', temperature: 1, top_k: -1 });
    expect(entryOf(sim, 'a').params).toMatchObject({ temperature: 0.6, topK: 20 });
    expect(entryOf(sim, 'b').params).toMatchObject({ temperature: 1, topK: 0 });
  });

  it('refuses a repeated id of a call in progress, n above 1, and forms that no reply has', async () => {
    const sim = await start({ faults: [{ kind: 'stall', on_calls: [1] }] });
    const stalled = post(`${sim.url}${CHAT}`, { messages: [user], tools, rid: 'a' }).catch(() => null);
    while (sim.engine.running === 0) await new Promise((resolve) => setImmediate(resolve));
    expect(await refusal(sim, { rid: 'a' })).toContain('Duplicate request ID');
    expect(await refusal(sim, { n: 2 })).toContain('n: ');
    expect(await refusal(sim, { top_logprobs: 2 })).toContain('top_logprobs');
    expect(await refusal(sim, { response_format: { type: 'json_object' }, tools: [] })).toContain('response_format');
    expect(await refusal(sim, { messages: [] })).toContain('messages');
    await post(`${sim.url}/abort_request`, { rid: 'a' });
    await stalled;
  });
});

describe('prompt ids in a chat', () => {
  for (const templateMode of TEMPLATE_MODES) {
    it(`${templateMode}: are sampled from whatever the messages are, and the tools determine how the reply is parsed`, async () => {
      const sim = await start({ templateMode });
      const input_ids = await promptOf(sim);
      const rendered = await chat(sim, { seed: 5 });
      const given = await chat(sim, {
        seed: 5,
        rid: 'a',
        input_ids,
        messages: [{ role: 'user', content: 'Something else.' }],
        ...everyWish,
      });
      expect(entryOf(sim, 'a')).toMatchObject({ prompt_ids: input_ids, prompt_form: 'ids' });
      expect(given.choices[0]?.prompt_token_ids).toEqual(input_ids);
      const { tool_calls: calls, ...message } = given.choices[0]?.message ?? {};
      expect(rendered.choices[0]?.message).toMatchObject(message);
      expect(calls?.map((call) => call.function)).toEqual(
        rendered.choices[0]?.message.tool_calls?.map((call) => call.function),
      );
    });

    it(`${templateMode}: continue the ids sampled before`, async () => {
      const sim = await start({ templateMode });
      const first = await chat(sim, { seed: 5, return_token_ids: true });
      const message = first.choices[0]?.message;
      const so_far = [...(first.choices[0]?.prompt_token_ids ?? []), ...(first.choices[0]?.token_ids ?? [])];
      const result = { role: 'tool', tool_call_id: message?.tool_calls?.[0]?.id, content: 'FAILED' };
      const messages = [user, message, result];
      const whole = await promptOf(sim, { messages, tools });
      // The suffix is the part of the rendered prompt that follows the assistant's turn: the ids of the tool result.
      const suffix = whole.slice(whole.lastIndexOf(imEnd, whole.lastIndexOf(vocabulary.special.toolResponseOpen)) + 1);
      const second = await chat(sim, { messages, input_ids: [...so_far, ...suffix], rid: 'b', return_token_ids: true });
      expect(second.choices[0]?.prompt_token_ids?.slice(0, so_far.length)).toEqual(so_far);
      expect(second.choices[0]?.message.tool_calls?.[0]?.function.arguments).toMatch(/^\{"command": "sed /);
      expect(second.usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThan(0);
    });
  }

  it('are refused when they are not in the vocabulary', async () => {
    const sim = await start();
    expect(await refusal(sim, { input_ids: [1_000_000] })).toContain('1000000');
  });
});

describe('the ages of SGLang', () => {
  for (const sglangAge of AGES) {
    const age = AGES.indexOf(sglangAge);

    it(`${sglangAge}: a whole reply has the ids that the release can report, and other fields are ignored`, async () => {
      const sim = await start({ sglangAge });
      const reply = await chat(sim, { ...everyWish, rid: 'a', logprobs: true });
      const entry = entryOf(sim, 'a');
      const choice = reply.choices[0];
      expect(choice?.prompt_token_ids).toEqual(entry.prompt_ids);
      expect(choice?.meta_info?.output_token_logprobs?.map(([, id]) => id)).toEqual(entry.response_ids);
      expect(choice?.token_ids).toEqual(age >= 1 ? entry.response_ids : undefined);
      const sglext = age >= 2 ? { input_ids: entry.prompt_ids, output_ids: [entry.response_ids] } : undefined;
      expect(reply.sglext).toEqual(sglext);
      const plain = await chat(sim, {});
      expect(plain.choices[0]).not.toHaveProperty('token_ids');
      expect(plain.choices[0]).not.toHaveProperty('prompt_token_ids');
      expect(plain.choices[0]).not.toHaveProperty('meta_info');
      expect(plain).not.toHaveProperty('sglext');
    });

    it(`${sglangAge}: a stream is refused when the release cannot report the requested ids in it`, async () => {
      const sim = await start({ sglangAge });
      expect(await refusal(sim, { stream: true, return_meta_info: true })).toContain('return_meta_info');
      if (age < 3) {
        expect(await refusal(sim, { stream: true, return_prompt_token_ids: true })).toContain(
          'return_prompt_token_ids',
        );
      }
      if (age === 1 || age === 2) {
        expect(await refusal(sim, { stream: true, return_token_ids: true })).toContain('return_token_ids');
      } else {
        const chunks = await stream(sim, { rid: 'a', return_token_ids: true });
        expect(assembled(chunks).ids).toEqual(age === 0 ? [] : entryOf(sim, 'a').response_ids);
      }
    });

    it(`${sglangAge}: headers and flags request ids in the second to last chunk`, async () => {
      const sim = await start({ sglangAge });
      const body = { rid: 'a', stream_options: { include_usage: true } };
      const headers = { 'x-sglext-return-input-ids': '1', 'x-sglext-return-output-ids': '1' };
      const flags = { return_input_ids_in_sglext: true, return_output_ids_in_sglext: true };
      for (const chunks of [await stream(sim, body, headers), await stream(sim, { ...body, ...flags, rid: 'b' })]) {
        const reported = chunks.filter(({ sglext }) => sglext !== undefined);
        const entry = entryOf(sim, chunks[0]?.id ?? '');
        if (age < 2) expect(reported).toEqual([]);
        else {
          expect(reported).toHaveLength(1);
          expect(chunks.at(-2)).toBe(reported[0]);
          expect(reported[0]).toMatchObject({
            choices: [],
            sglext: { input_ids: entry.prompt_ids, output_ids: [entry.response_ids] },
          });
        }
        expect(chunks.at(-1)?.usage?.completion_tokens).toBe(entry.response_ids.length);
      }
    });

    it(`${sglangAge}: a strict server refuses fields that the release does not know`, async () => {
      const sim = await start({ sglangAge, strict: true });
      expect(await refusal(sim, { add_generation_prompt: true })).toContain('add_generation_prompt');
      if (age < 1) expect(await refusal(sim, { return_token_ids: true })).toContain('return_token_ids');
      else await chat(sim, { return_token_ids: true });
    });
  }

  it('stream_ids: every chunk has the ids of its tokens, and the first chunk those of the prompt', async () => {
    const sim = await start({ streamInterval: 4 });
    const chunks = await stream(sim, { seed: 5, rid: 'a', return_token_ids: true, logprobs: true });
    const entry = entryOf(sim, 'a');
    expect(chunks[0]?.choices[0]?.prompt_token_ids).toEqual(entry.prompt_ids);
    expect(chunks.slice(1).every(({ choices }) => choices[0]?.prompt_token_ids === undefined)).toBe(true);
    expect(assembled(chunks).ids).toEqual(entry.response_ids);
    const logprobs = chunks.flatMap(({ choices }) => choices[0]?.logprobs?.content ?? []);
    expect(logprobs.map(({ logprob }) => logprob)).toEqual(entry.processed_logprobs);
  });
});

describe('a chat stream', () => {
  for (const templateMode of TEMPLATE_MODES) {
    it(`${templateMode}: has the content of the whole reply`, async () => {
      const sim = await start({ templateMode });
      for (const seed of [1, 2, 3]) {
        const plain = (await chat(sim, { seed })).choices[0];
        const whole = assembled(await stream(sim, { seed }));
        expect(whole.reasoning).toBe(plain?.message.reasoning_content ?? '');
        expect(whole.content.trim()).toBe(plain?.message.content);
        expect(whole.calls).toEqual(plain?.message.tool_calls?.map((call) => call.function));
        expect(whole.finish.finish_reason).toBe(plain?.finish_reason);
      }
    });
  }

  it('reports routed experts where it reports ids', async () => {
    const sim = await start({ routedExperts: true });
    const request = { return_routed_experts: true, seed: 3 };
    const plain = await chat(sim, request);
    const chunks = await stream(sim, request);
    expect(plain.sglext?.routed_experts).toBeDefined();
    expect(chunks.at(-1)?.sglext).toEqual(plain.sglext);
  });
});
