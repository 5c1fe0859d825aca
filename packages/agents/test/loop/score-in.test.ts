import { describe, expect, it } from 'vitest';
import { scoreIn } from '../../src/loop/score-in.ts';

describe('the score in a reply of a judge', () => {
  it.each([
    ['0.5', 0.5],
    [' -1\n', -1],
    ['{"score": 0.25}', 0.25],
    ['Because {it is} so: {"score": 1, "why": "all"}.', 1],
    ['First {"score": 0}, then {"score": 1}', 1],
    ['```json\n{"score": 0.75}\n```', 0.75],
    ['about 0.5', null],
    ['{"score": "high"}', null],
    ['{"score": 1', null],
    ['', null],
  ])('of %j is %j', (reply, score) => {
    expect(scoreIn(reply)).toBe(score);
  });
});
