import { describe, expect, it } from 'vitest';
import { parsePolarReward, parsePytestSummary, parseRewardJson, parseRewardText } from '../src/harbor-reward.ts';

describe('reward.txt', () => {
  it.each([
    ['1', 1],
    [' 0.25\n', 0.25],
    ['-1e2', -100],
    ['+.5', 0.5],
    ['1.', 1],
  ])('with %j is the reward %s', (text, reward) => {
    expect(parseRewardText(Buffer.from(text))).toEqual({ reward, components: {} });
  });

  it.each(['', 'nan', 'inf', '1e400', '1 0', '0x1', 'passed', '1'.repeat(100)])('with %j has no reward', (text) => {
    expect(parseRewardText(Buffer.from(text))).toBe('reward.txt: is not a number');
  });
});

describe('reward.json', () => {
  it.each([
    ['0.5', 0.5, {}],
    ['{"reward": 1, "style": 0.5, "tests": true}', 1, { reward: 1, style: 0.5, tests: 1 }],
    ['{"a": 1, "b": 0}', 0.5, { a: 1, b: 0 }],
    ['{"only": 0.75}', 0.75, { only: 0.75 }],
  ])('%s has the reward %s', (text, reward, components) => {
    expect(parseRewardJson(Buffer.from(text))).toEqual({ reward, components });
  });

  it.each(['', '{', '{}', '[]', 'null', '"1"', '{"a": "1"}', '{"a": null}', '{"a": 1e400}', '{"": 1}'])(
    'with %j has no reward but a reason',
    (text) => {
      expect(parseRewardJson(Buffer.from(text))).toEqual(expect.any(String));
    },
  );
});

describe('the summary of pytest', () => {
  const HEADER = '===== short test summary info =====';

  it.each([
    ['PASSED t.py::a\nPASSED t.py::b\n==== 2 passed ====', 1, 1],
    ['PASSED t.py::a\nSKIPPED [1] t.py:3: no\nXFAIL t.py::c - why', 1, 1],
    ['PASSED t.py::a\nFAILED t.py::b - assert 1', 0, 0.5],
    ['PASSED t.py::a\nXPASS t.py::b', 0, 0.5],
    ['ERROR t.py::a - fixture', 0, 0],
  ])('%j has the reward %s', (lines, reward, share) => {
    const output = `collected\nFAILED before\n${HEADER}\n${lines}\n`;
    expect(parsePytestSummary(output)).toEqual({ reward, components: { tests_passed: share } });
  });

  it.each(['PASSED t.py::a', `${HEADER}\n`, ''])('is missing in %j', (output) => {
    expect(parsePytestSummary(output)).toEqual(expect.stringContaining('short test summary of pytest'));
  });
});

describe('the rewards as Polar reads them', () => {
  it.each<[string | null, string | null, number | null]>([
    ['0.5', '{"reward": 1}', 0.5],
    ['7', null, 1],
    ['-1', null, 0],
    [null, '{"reward": 1, "style": 0}', 0.5],
    [null, '3', 1],
    ['passed', '0.25', 0.25],
    [null, null, null],
  ])('are the number of reward.txt, or else the mean of reward.json, from 0 to 1: %j, %j', (text, json, reward) => {
    const read = parsePolarReward(text === null ? null : Buffer.from(text), json === null ? null : Buffer.from(json));
    expect(read === null || typeof read === 'string' ? read : read.reward).toBe(reward);
  });

  it('are invalid where neither file has a number', () => {
    expect(parsePolarReward(Buffer.from('passed'), null)).toBe('reward.txt: is not a number');
    expect(parsePolarReward(null, Buffer.from('{}'))).toBe('reward.json: has no number');
  });
});
