import { seededRandom } from '@floe-rl/core';
import type { SessionResult, Trace } from '@floe-rl/core/schema';
import { bundledVocabulary } from '@floe-rl/sim';
import { describe, expect, it } from 'vitest';
import { permuteRewards, retokenise, SABOTAGES, shiftMask } from '../../../verify/learn/sabotage.ts';

const vocabulary = bundledVocabulary();
const letters = [...'Read the log.'].flatMap((letter) => vocabulary.encode(letter));
const context = vocabulary.encode('a tool result');
const response = [...letters, ...context, ...letters];
const mask = [...letters.map(() => 1), ...context.map(() => 0), ...letters.map(() => 1)];
const second = letters.length + context.length;

const trace = {
  response_ids: response,
  loss_mask: mask,
  response_logprobs: mask.map((bit, index) => (bit === 1 ? -(index + 1) / 100 : 0)),
  version_spans: [
    { version: 'v1', start: 0, end: letters.length },
    { version: 'v2', start: second, end: response.length },
  ],
} as unknown as Trace;

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

describe('the sabotage of a trainer', () => {
  it('moves the mask one token later: the first token of each reply is lost, and one of the context is trained', () => {
    const shifted = shiftMask(trace);
    expect(shifted.loss_mask).toHaveLength(response.length);
    expect(shifted.loss_mask.slice(0, letters.length + 2)).toEqual([0, ...letters.slice(1).map(() => 1), 1, 0]);
    expect(shifted.response_ids).toBe(trace.response_ids);
    expect(shifted.response_logprobs).toBe(trace.response_logprobs);
  });

  it('encodes trained text again: other ids of the same text, with the log-probabilities and versions of the sampled ones', () => {
    const changed = retokenise(trace);
    const { response_ids: ids, loss_mask: bits, response_logprobs: logprobs, version_spans: spans } = changed;
    expect(vocabulary.decode(ids)).toBe(vocabulary.decode(response));
    expect(ids.length).toBeLessThan(response.length);
    expect(bits).toHaveLength(ids.length);
    expect(logprobs).toHaveLength(ids.length);
    expect(sum(logprobs)).toBeCloseTo(sum(trace.response_logprobs), 9);
    const trained = ids.filter((_, index) => bits[index] === 1);
    expect(trained).toEqual([...vocabulary.encode('Read the log.'), ...vocabulary.encode('Read the log.')]);
    expect(spans).toEqual([
      { version: 'v1', start: 0, end: trained.length / 2 },
      { version: 'v2', start: ids.length - trained.length / 2, end: ids.length },
    ]);
  });

  it('gives each sample the reward of another one of its group', () => {
    const group = [1, 2, 3, 4].map((reward) => ({ reward }) as SessionResult);
    for (let seed = 0; seed < 20; seed++) {
      const rewards = permuteRewards(group, seededRandom(seed)).map(({ reward }) => reward ?? 0);
      expect(rewards.toSorted()).toEqual([1, 2, 3, 4]);
      expect(rewards.every((reward, index) => reward !== index + 1)).toBe(true);
    }
  });

  it('keeps sessions without traces as they are', () => {
    const group = [{ reward: 0, trajectory: null } as SessionResult];
    for (const { apply } of SABOTAGES) expect(apply([group], seededRandom(1))).toEqual([group]);
  });
});
