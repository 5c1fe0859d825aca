import { seededRandom } from '@floe-rl/core';
import { sessionResultSchema } from '@floe-rl/core/schema';
import { trainingGroups } from '@floe-rl/data/trainers';
import { describe, expect, it } from 'vitest';
import { GROUP_SIZE, randomTrajectories, VOCABULARY, withLogprobs } from '../../../verify/trainers/trajectories.ts';

describe('randomTrajectories', () => {
  const results = randomTrajectories(200, seededRandom(5), { oneTrace: false });
  const traces = results.flatMap(({ trajectory }) => trajectory?.traces ?? []);

  it('makes valid results with several traces, whose ids are those of the tiny model', () => {
    for (const result of results) expect(sessionResultSchema.parse(result)).toEqual(result);
    for (const { trajectory } of results) expect(trajectory?.traces.length).toBeGreaterThan(1);
    for (const { prompt_ids, response_ids } of traces) {
      expect(Math.max(...prompt_ids, ...response_ids)).toBeLessThan(VOCABULARY);
    }
  });

  it('makes tool results, replies that are not trained, changes of the version within a reply, and masked and dropped sessions', () => {
    const hasChange = traces.some(({ version_spans: spans }) =>
      spans.some(({ end }, at) => spans[at + 1]?.start === end),
    );
    expect(hasChange).toBe(true);
    expect(traces.some(({ constrained_spans }) => constrained_spans.length > 0)).toBe(true);
    expect(traces.some(({ loss_mask }) => loss_mask.join('').includes('101'))).toBe(true);
    expect(traces.some(({ response_messages }) => response_messages.some(({ role }) => role === 'tool'))).toBe(true);
    expect(new Set(results.map(({ policy }) => policy.use))).toEqual(new Set(['train', 'mask', 'drop']));
  });

  it('gives versions to trained tokens only', () => {
    for (const { version_spans, loss_mask } of traces) {
      const versioned = loss_mask.map((_, at) =>
        version_spans.some(({ start, end }) => start <= at && at < end) ? 1 : 0,
      );
      expect(versioned).toEqual(loss_mask);
    }
  });

  it('makes one trace for each session on request, all of which are exported in groups of one size', () => {
    const groups = trainingGroups(randomTrajectories(200, seededRandom(5), { oneTrace: true }));
    expect(groups.map(({ samples }) => samples.map(({ rows }) => rows.length))).toEqual(
      Array(200 / GROUP_SIZE).fill(Array(GROUP_SIZE).fill(1)),
    );
  });

  it('makes the same trajectories for the same seed', () => {
    const make = (seed: number) => randomTrajectories(4, seededRandom(seed), { oneTrace: false });
    expect(make(5)).toEqual(results.slice(0, 4).map((result) => result));
    expect(make(6)).not.toEqual(make(5));
  });
});

describe('withLogprobs', () => {
  it('sets the logprobs of trained tokens by their position in prompt and response', () => {
    const [result] = withLogprobs(
      randomTrajectories(1, seededRandom(5), { oneTrace: false }),
      new Map(
        randomTrajectories(1, seededRandom(5), { oneTrace: false })
          .flatMap(({ trajectory }) => trajectory?.traces ?? [])
          .map((trace) => [trace.trace_id, [...trace.prompt_ids, ...trace.response_ids].map((_, at) => -at)]),
      ),
    );
    for (const { prompt_ids, loss_mask, response_logprobs } of result?.trajectory?.traces ?? []) {
      expect(response_logprobs).toEqual(loss_mask.map((mask, at) => (mask === 1 ? -(prompt_ids.length + at) : 0)));
    }
  });
});
