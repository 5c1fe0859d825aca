import { describe, expect, it } from 'vitest';
import { lastBoxed } from '../src/boxed-text.ts';

describe('lastBoxed', () => {
  it.each<[string, string, string | null]>([
    ['the last of several boxes', 'first \\boxed{1}, then \\boxed{2}.', '2'],
    ['a box with nested braces', 'so \\boxed{\\frac{1}{2}}', '\\frac{1}{2}'],
    ['a box with escaped braces', '\\boxed{\\{1, 2\\}}', '\\{1, 2\\}'],
    ['an fbox with space before its braces', '\\fbox {x}', 'x'],
    ['the inner of two boxes', '\\boxed{a \\boxed{b} c}', 'b'],
    ['the box after an unbalanced brace', 'a { b \\boxed{3}', '3'],
    ['the last complete box', '\\boxed{1} and \\boxed{2', '1'],
    ['an empty box', '\\boxed{}', ''],
    ['no box', 'the answer is {5} and boxed{6}', null],
  ])('finds %s', (_, text, answer) => {
    expect(lastBoxed(text)).toBe(answer);
  });

  it('reads a hostile text in time', () => {
    expect(lastBoxed('\\boxed{'.repeat(9_000))).toBeNull();
    expect(lastBoxed(`${'{'.repeat(60_000)}\\boxed{7}${'}'.repeat(60_000)}`)).toBe('7');
  });
});
