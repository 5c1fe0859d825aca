import { seededRandom } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { exportFiles } from '../../../verify/trainers/exports.ts';
import { SABOTAGES, sabotaged, sabotagedResults } from '../../../verify/trainers/sabotage.ts';
import { randomTrajectories, withLogprobs } from '../../../verify/trainers/trajectories.ts';

function files() {
  const random = seededRandom(3);
  const [several, one] = [false, true].map((oneTrace) => {
    const results = randomTrajectories(8, random, { oneTrace });
    const traces = results.flatMap(({ trajectory }) => trajectory?.traces ?? []);
    const logprobs = traces.map(({ trace_id, prompt_ids, response_ids }) => {
      return [trace_id, [...prompt_ids, ...response_ids].map(() => -random())] as const;
    });
    return withLogprobs(results, new Map(logprobs));
  });
  return exportFiles(several ?? [], one ?? []);
}

describe('sabotaged', () => {
  it.each(SABOTAGES)('changes every format by %s, except the rows with which the formats are compared', (sabotage) => {
    const originals = files();
    const changed = sabotaged(originals, sabotage, seededRandom(1));
    const same = changed.filter(({ text }, at) => text === originals[at]?.text).map(({ format }) => format);
    expect(changed.map(({ path }) => path)).toEqual(originals.map(({ path }) => path));
    expect(same).toEqual(['floe', 'floe']);
  });

  it('delays masks and logprobs by one position, and replaces ids', () => {
    const record = { response_ids: [7, 8, 9], response_mask: [1, 0, 0], response_logprobs: [-1, -2, -3], index: 0 };
    const file = { path: 'verl.jsonl', format: 'verl' as const, text: `${JSON.stringify(record)}\n` };
    const [shift, retokenise, mask] = SABOTAGES.map((sabotage) => {
      const [changed] = sabotaged([file], sabotage, seededRandom(1));
      return JSON.parse(changed?.text ?? '');
    });
    expect(shift).toEqual({ ...record, response_logprobs: [-3, -1, -2] });
    expect(mask).toEqual({ ...record, response_mask: [0, 1, 0] });
    expect(retokenise).toEqual({ ...record, response_ids: expect.not.arrayContaining(record.response_ids) });
  });

  it('moves the first trained token of a message or step to its context', () => {
    const log = [
      { role: 'user', token_ids: [1, 2], generation_logprobs: [0, 0] },
      { role: 'assistant', token_ids: [3, 4], generation_logprobs: [-1, -2] },
    ];
    const steps = [{ prompt_ids: [1, 2], response_ids: [3, 4], logprobs: [-1, -2] }];
    const [nemo, rllm] = sabotaged(
      [
        { path: 'nemo_rl.jsonl', format: 'nemo_rl', text: `${JSON.stringify({ message_log: log })}\n` },
        { path: 'rllm.jsonl', format: 'rllm', text: `${JSON.stringify({ trajectories: [{ steps }] })}\n` },
      ],
      'mask',
      seededRandom(1),
    );
    expect(JSON.parse(nemo?.text ?? '').message_log).toEqual([
      { role: 'user', token_ids: [1, 2, 3], generation_logprobs: [0, 0, -1] },
      { role: 'assistant', token_ids: [4], generation_logprobs: [-2] },
    ]);
    expect(JSON.parse(rllm?.text ?? '').trajectories[0].steps).toEqual([
      { prompt_ids: [1, 2, 3], response_ids: [4], logprobs: [-2] },
    ]);
  });
});

describe('sabotagedResults', () => {
  it.each([
    ['shift', 'response_logprobs'],
    ['retokenise', 'response_ids'],
    ['mask', 'loss_mask'],
  ] as const)('changes by %s only the field %s of every trace in which it can differ', (sabotage, field) => {
    const results = randomTrajectories(8, seededRandom(3), { oneTrace: false });
    const traces = results.flatMap(({ trajectory }) => trajectory?.traces ?? []);
    const logprobs = new Map(
      traces.map(({ trace_id, prompt_ids, response_ids }) => {
        return [trace_id, [...prompt_ids, ...response_ids].map((_, at) => -at)] as const;
      }),
    );
    const originals = withLogprobs(results, logprobs);
    const changed = sabotagedResults(originals, sabotage, seededRandom(1));
    for (const [at, { trajectory }] of originals.entries()) {
      for (const [index, trace] of (trajectory?.traces ?? []).entries()) {
        const other = changed[at]?.trajectory?.traces[index];
        const { [field]: values, ...rest } = trace;
        expect(other).toMatchObject(rest);
        if (new Set(values).size > 1 || sabotage === 'retokenise') expect(other?.[field]).not.toEqual(values);
      }
    }
    expect(originals.flatMap(({ trajectory }) => trajectory?.traces ?? []).length).toBeGreaterThan(8);
  });
});
