import { describe, expect, it } from 'vitest';
import { checkedEvaluation, NO_EVALUATION } from '../src/evaluation-check.ts';
import { sessionOf, traceOf } from './evaluated-session.ts';

const session = sessionOf('done', { traces: [traceOf('t0', ['c0', 'c1']), traceOf('t1', ['c2'])] });
const check = (evaluation: object) => checkedEvaluation('mine', { reward: 1, details: {}, ...evaluation }, session);

describe('checkedEvaluation', () => {
  it('keeps components and the rewards of traces and replies of the session', () => {
    const evaluation = {
      reward: 0.5,
      details: { seen: true },
      components: { tests: 1, style: null },
      traceRewards: { t1: 0.25 },
      stepRewards: { c0: -1, c2: 3 },
    };
    expect(check(evaluation)).toEqual(evaluation);
  });

  it('has no components and no rewards of traces where the evaluator returns none', () => {
    expect(check({})).toEqual({ ...NO_EVALUATION, reward: 1 });
  });

  it('drops the rewards of traces and replies when the session has no reward', () => {
    const checked = check({ reward: null, components: { a: 1 }, traceRewards: { t0: 1 }, stepRewards: { c0: 1 } });
    expect(checked).toEqual({ ...NO_EVALUATION, components: { a: 1 } });
  });

  it.each<[string, object, RegExp]>([
    ['a reward that is not a number', { reward: 'high' }, /mine: reward:/],
    ['NaN as reward', { reward: Number.NaN }, /mine: reward:/],
    ['an infinite reward', { reward: Number.POSITIVE_INFINITY }, /mine: reward:/],
    ['a reward beyond the largest magnitude', { reward: 1e16 }, /mine: reward:/],
    ['NaN as component', { components: { a: Number.NaN } }, /components\.a/],
    ['an empty component name', { components: { '': 1 } }, /components/],
    [
      'too many components',
      { components: Object.fromEntries(Array.from({ length: 257 }, (_, i) => [i, 1])) },
      /components: has more than 256 names/,
    ],
    ['null as reward of a trace', { traceRewards: { t0: null } }, /traceRewards\.t0/],
    ['a reward of an unknown trace', { traceRewards: { t9: 1 } }, /traceRewards: no trace of the session has t9/],
    ['a reward of an unknown reply', { stepRewards: { c9: 1 } }, /stepRewards: no trace of the session has c9/],
    ['no details', { details: undefined }, /details/],
  ])('rejects %s and names the field', (_, evaluation, message) => {
    expect(() => check(evaluation)).toThrow(
      expect.objectContaining({ code: 'evaluator_failed', message: expect.stringMatching(message) }),
    );
  });
});
