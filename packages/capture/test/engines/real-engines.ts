import { systemClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../test/skip.ts';
import type { Engine, GenerateReply } from '../../src/engines/engine.ts';
import { createEngine } from '../../src/engines/engine-kinds.ts';
import { processedLogprob } from '../../src/engines/llama-cpp/logprobs.ts';
import { contractRequest, engineContract } from './contract.ts';
import { type Sequence, TinkerOracle } from './tinker/oracle.ts';

type TestedServer = { name: string; spec: object; binary: string };

/**
 * The servers to test, from a JSON array of `{name, spec, binary}` in an environment variable. Only `npm run verify -- engines` runs this
 * file; it starts the servers and sets the variable.
 */
const servers = (JSON.parse(process.env.FLOE_REAL_ENGINES ?? '[]') as TestedServer[]).map(({ spec, ...server }) => ({
  ...server,
  spec: engineSpecSchema.parse(spec),
}));
const never = new AbortController().signal;
const llama = servers.find(({ spec }) => spec.kind === 'llama_cpp')?.spec;
const vllm = servers.find(({ spec }) => spec.kind === 'vllm')?.spec;
const tinker = servers.find(({ spec }) => spec.kind === 'tinker');

/** Reason that is reported when the tests of llama.cpp are skipped. */
const NO_LLAMA = 'FLOE_REAL_ENGINES names no llama.cpp server';
const NO_VLLM = 'FLOE_REAL_ENGINES names no vLLM server';
const NO_TINKER = 'FLOE_REAL_ENGINES names no Tinker server';
const NO_PAIR = 'FLOE_REAL_ENGINES does not name both a llama.cpp and a vLLM server';

/**
 * Largest accepted difference between two log-probabilities that should be equal. Two implementations that sum the same float32 values
 * differ by less.
 */
const ROUNDING = 5e-3;

/** Largest accepted difference between the log-probabilities of sampling and training of one server, which use the same weights. */
const FORWARD_ROUNDING = 1e-3;

for (const { name, spec } of servers) {
  engineContract(name, async () => {
    const engine = await createEngine(spec, { clock: systemClock });
    return { spec, engine, close: () => engine.close() };
  });
}

/** Samples replies that together contain thinking, tool calls and characters that are split over several tokens. */
async function replies(spec: NonNullable<typeof llama>, temperature: number): Promise<GenerateReply[]> {
  const engine = await createEngine(spec, { clock: systemClock });
  const tool = { type: 'function' as const, function: { name: 'list_files', parameters: { type: 'object' } } };
  const sampling = samplingSchema.parse({ temperature });
  const all: GenerateReply[] = [];
  for (let seed = 0; seed < 12; seed++) {
    const request = contractRequest('plain', { seed, sampling, tools: [tool], toolsText: JSON.stringify([tool]) });
    all.push(await engine.generate(request, never));
  }
  await engine.close();
  return all;
}

async function post(base: string, path: string, body: object): Promise<unknown> {
  const response = await fetch(base + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(200);
  return response.json();
}

describeIf(llama === undefined ? NO_LLAMA : null, 'llama.cpp', () => {
  const spec = llama as NonNullable<typeof llama>;

  it('its replies have thinking, calls and split characters, and a log-probability for every id', async () => {
    const all = await replies(spec, 0.6);
    expect(all.some(({ message }) => message.reasoning_content === 'I look at the files first')).toBe(true);
    expect(all.some(({ message }) => message.content?.includes('漢字'))).toBe(true);
    const calls = all.flatMap(({ message }) => message.tool_calls ?? []).map((call) => call.function);
    expect(calls).toContainEqual({ name: 'list_files', arguments: '{"path":"/tmp"}' });
    for (const reply of all) expect(reply.logprobsMode).toBe('processed');
  });

  it('its processed distribution equals the one that floe computes from the raw one', async () => {
    const sampling = samplingSchema.parse({ temperature: 0.7, top_p: 0.95, top_k: 200, min_p: 0.0001 });
    const ask = (post_sampling_probs: boolean) =>
      post(spec.base_url, '/completion', {
        prompt: [6257, 77, 198],
        n_predict: 1,
        samplers: ['penalties', 'temperature', 'min_p', 'top_k', 'top_p'],
        ...{ temperature: 0.7, top_p: 0.95, top_k: 200, min_p: 0.0001, repeat_last_n: 0 },
        n_probs: 1_000_000,
        post_sampling_probs,
      }) as Promise<{ completion_probabilities: Record<string, { id: number; prob: number; logprob: number }[]>[] }>;
    const processed = (await ask(true)).completion_probabilities[0]?.top_probs ?? [];
    const raw = (await ask(false)).completion_probabilities[0]?.top_logprobs ?? [];
    expect(processed.length).toBeGreaterThan(1);
    for (const { id, prob } of processed) {
      expect(processedLogprob(raw, id, sampling), `id ${id}`).toBeCloseTo(Math.log(prob), 3);
    }
    const cut = raw.find(({ id }) => !processed.some((candidate) => candidate.id === id));
    expect(cut && processedLogprob(raw, cut.id, sampling)).toBeNull();
  });
});

describeIf(vllm === undefined ? NO_VLLM : null, 'vLLM', () => {
  it.each(['raw', 'processed'] as const)(
    'its log-probabilities are processed when it is configured as %s',
    async (mode) => {
      const spec = { ...(vllm as NonNullable<typeof vllm>), logprobs_mode: mode };
      const engine = await createEngine(spec, { clock: systemClock });
      const { logprobs_mode, capabilities } = engine.info();
      await engine.close();
      expect(logprobs_mode).toBe('processed');
      expect(capabilities.notes.join()).not.toContain('believed');
    },
  );
});

describeIf(tinker === undefined ? NO_TINKER : null, 'a Tinker server', () => {
  const { spec, binary } = tinker as NonNullable<typeof tinker>;
  let engine: Engine;
  let oracle: TinkerOracle;
  beforeAll(async () => {
    engine = await createEngine(spec, { clock: systemClock });
    oracle = new TinkerOracle(binary, spec.base_url, spec.model ?? '');
  });
  afterAll(async () => {
    oracle.close();
    await engine.close();
  });
  const sample = (seed: number): Promise<GenerateReply> =>
    engine.generate(contractRequest('plain', { seed, maxTokens: 64 }), never);
  const sequenceOf = ({ promptIds, responseIds, responseLogprobs }: GenerateReply): Required<Sequence> => ({
    prompt: [...promptIds],
    tokens: [...responseIds],
    logprobs: [...responseLogprobs],
  });
  const expectForward = async (replies: readonly GenerateReply[]): Promise<void> => {
    const sequences = replies.map(sequenceOf);
    const own = await oracle.forward(sequences.map(({ prompt, tokens }) => ({ prompt, tokens })));
    for (const [index, { logprobs }] of sequences.entries()) {
      expect(own[index]?.length).toBe(logprobs.length);
      for (const [at, logprob] of logprobs.entries()) {
        expect(Math.abs(logprob - (own[index]?.[at] ?? Number.NaN)), `token ${at}`).toBeLessThan(FORWARD_ROUNDING);
      }
    }
  };

  it('its replies are the ids and log-probabilities that its own SDK samples with the same seed', async () => {
    const stop = engine.info().capabilities.template.close_ids;
    for (const seed of [1, 2, 3]) {
      const { prompt, tokens, logprobs } = sequenceOf(await sample(seed));
      const request = { prompt, max_tokens: 64, seed, stop, temperature: 1 };
      const expected = await oracle.sample(request);
      expect(tokens).toEqual(expected.tokens);
      for (const [at, logprob] of logprobs.entries())
        expect(logprob).toBeCloseTo(expected.logprobs[at] ?? Number.NaN, 4);
    }
  });

  it('its log-probabilities are measured as raw', () => {
    expect(engine.info().logprobs_mode).toBe('raw');
  });

  it('its log-probabilities are those of a forward pass of the training side, before and after a step', async () => {
    const before = [await sample(4), await sample(5)];
    await expectForward(before);
    const path = await oracle.step(before.map(sequenceOf));
    engine.setPolicyVersion(path);
    const after = [await sample(4), await sample(6)];
    for (const { versionSpans, responseIds } of after) {
      expect(versionSpans).toEqual([{ version: path, start: 0, end: responseIds.length }]);
    }
    await expectForward(after);
    expect([...(after[0]?.responseLogprobs ?? [])]).not.toEqual([...(before[0]?.responseLogprobs ?? [])]);
  });
});

describeIf(
  llama === undefined || vllm === undefined ? NO_PAIR : null,
  'vLLM and llama.cpp with the same weights',
  () => {
    const [one, other] = [llama, vllm] as [NonNullable<typeof llama>, NonNullable<typeof llama>];

    it('they have the same template facts', async () => {
      const engines = await Promise.all([one, other].map((spec) => createEngine(spec, { clock: systemClock })));
      const [a, b] = engines.map((engine) => engine.info().capabilities.template);
      for (const engine of engines) await engine.close();
      expect(a?.close_ids).toEqual(b?.close_ids);
      expect(a?.tail_render).toBe(b?.tail_render);
      expect(a?.thinking).toEqual(b?.thinking);
    });

    it('vLLM computes the log-probabilities that llama.cpp reported for its sampled ids', async () => {
      for (const { promptIds, responseIds, responseLogprobs } of await replies(one, 1)) {
        const prompt = [...promptIds, ...responseIds];
        const reply = (await post(other.base_url, '/v1/completions', {
          model: other.model,
          prompt,
          max_tokens: 1,
          prompt_logprobs: 0,
        })) as { choices: { prompt_logprobs: (Record<string, { logprob: number }> | null)[] }[] };
        const scored = reply.choices[0]?.prompt_logprobs.slice(promptIds.length) ?? [];
        expect(scored.length).toBe(responseIds.length);
        for (const [index, id] of responseIds.entries()) {
          const logprob = scored[index]?.[id]?.logprob ?? Number.NaN;
          expect(Math.abs(logprob - (responseLogprobs[index] ?? 0)), `id ${id} at ${index}`).toBeLessThan(ROUNDING);
        }
      }
    });
  },
);
