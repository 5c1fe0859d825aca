import { samplingSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { completeLogprobs, isUntransformed, processedLogprob } from '../../../src/engines/llama-cpp/logprobs.ts';
import { knownLogprobs } from '../../../src/engines/llama-cpp/reply.ts';

describe('knownLogprobs', () => {
  it('assigns each log-probability to its id', () => {
    const ids = Int32Array.of(4, 5, 6, 7);
    const answers = [
      { id: 4, logprob: -1 },
      { id: 7, logprob: -2 },
    ];
    expect([...knownLogprobs(answers, ids)]).toEqual([-1, Number.NaN, Number.NaN, -2]);
  });

  it('ignores a log-probability whose id matches two positions', () => {
    expect([...knownLogprobs([{ id: 5, logprob: -1 }], Int32Array.of(5, 5))]).toEqual([Number.NaN, Number.NaN]);
  });

  it('assigns no log-probability to a wrong position, whichever are missing', () => {
    const token = fc.record({ id: fc.nat(3), hidden: fc.boolean() });
    fc.assert(
      fc.property(fc.array(token, { minLength: 1, maxLength: 30 }), (tokens) => {
        const answers = tokens.flatMap(({ id, hidden }, i) => (hidden ? [] : [{ id, logprob: -i }]));
        const known = knownLogprobs(answers, Int32Array.from(tokens.map(({ id }) => id)));
        for (const [i, logprob] of known.entries()) if (!Number.isNaN(logprob)) expect(logprob + i).toBe(0);
        if (answers.length === tokens.length) expect(known.some(Number.isNaN)).toBe(false);
      }),
    );
  });
});

describe('processedLogprob', () => {
  const distribution = fc
    .array(fc.double({ min: -8, max: 8, noNaN: true }), { minLength: 2, maxLength: 20 })
    .map((logits) => {
      const sum = Math.log(logits.reduce((total, logit) => total + Math.exp(logit), 0));
      return logits.map((logit, id) => ({ id, logprob: logit - sum })).sort((a, b) => b.logprob - a.logprob);
    });
  const samplings = fc.record({
    temperature: fc.constantFrom(0, 0.5, 1, 2),
    top_p: fc.constantFrom(0.3, 0.9, 1),
    top_k: fc.constantFrom(0, 1, 5),
    min_p: fc.constantFrom(0, 0.1, 1),
  });

  it('forms a distribution over the tokens that are not excluded, always with the likeliest', () => {
    fc.assert(
      fc.property(distribution, samplings, (raw, input) => {
        const sampling = samplingSchema.parse(input);
        const logprobs = raw.map(({ id }) => processedLogprob(raw, id, sampling));
        const kept = logprobs.filter((logprob) => logprob !== null);
        expect(kept.reduce((sum, logprob) => sum + Math.exp(logprob), 0)).toBeCloseTo(1, 9);
        expect(logprobs[0]).not.toBeNull();
        if (sampling.top_k > 0) expect(kept.length).toBeLessThanOrEqual(sampling.top_k);
        if (isUntransformed(sampling, false)) {
          for (const [i, { logprob }] of raw.entries()) expect(logprobs[i]).toBeCloseTo(logprob, 9);
        }
      }),
    );
  });

  it('applies temperature and exclusions as the server does', () => {
    const raw = [0.5, 0.3, 0.2].map((p, id) => ({ id, logprob: Math.log(p) }));
    const of = (id: number, input: object) => processedLogprob(raw, id, samplingSchema.parse(input));
    expect(of(1, { temperature: 0.5 })).toBeCloseTo(Math.log(0.09 / 0.38), 9);
    expect(of(1, { top_k: 2 })).toBeCloseTo(Math.log(0.3 / 0.8), 9);
    expect(of(1, { top_p: 0.79 })).toBeCloseTo(Math.log(0.3 / 0.8), 9);
    expect(of(2, { top_p: 0.79 })).toBeNull();
    expect(of(2, { min_p: 0.5 })).toBeNull();
    expect(of(0, { temperature: 0 })).toBe(0);
    expect(of(1, { temperature: 0 })).toBeNull();
  });
});

describe('completeLogprobs', () => {
  const raw = [0.5, 0.3, 0.2].map((p, id) => ({ id, logprob: Math.log(p) }));
  const missing = {
    promptIds: Int32Array.of(7, 8),
    ids: Int32Array.of(0, 1),
    known: Float32Array.of(-0.5, Number.NaN),
    mode: 'processed',
    isTransformed: true,
    sampling: samplingSchema.parse({ temperature: 0.5, top_k: 2 }),
    vocabulary: 3,
  } as const;

  it('computes a missing processed log-probability from the distribution of the whole vocabulary', async () => {
    const requests: [number[], number][] = [];
    const logprobs = await completeLogprobs(missing, async (prefix, count) => {
      requests.push([[...prefix], count]);
      return raw;
    });
    expect(requests).toEqual([[[7, 8, 0], 3]]);
    expect(logprobs[0]).toBe(-0.5);
    expect(logprobs[1]).toBeCloseTo(Math.log(0.09 / 0.34), 6);
  });

  it('rejects with engine_error when the sampling parameters exclude the sampled id', async () => {
    await expect(completeLogprobs({ ...missing, ids: Int32Array.of(0, 2) }, async () => raw)).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringContaining('the requested sampling cannot have sampled the id 2'),
    });
  });
});
