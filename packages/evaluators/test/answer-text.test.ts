import { describe, expect, it } from 'vitest';
import { choiceOf, normalText, withoutDelimiters, wordF1 } from '../src/answer-text.ts';

describe('choiceOf', () => {
  it.each<[string, string | null]>([
    ['B', 'B'],
    [' (b). ', 'B'],
    ['**C**', 'C'],
    ['$\\text{D}$', 'D'],
    ['\\textbf{(A)}', 'A'],
    ['The answer is (B).', 'B'],
    ['Answer: C', 'C'],
    ['I first thought the answer is A.\nFinal answer: **D** because', 'D'],
    ['B) Paris', 'B'],
    ['The answer is Berlin', null],
    ['a dog', null],
    ['A dog', null],
    ['', null],
    [`${' '.repeat(30_000)}x${' '.repeat(30_000)}B`, null],
  ])('reads %j as %s', (text, choice) => {
    expect(choiceOf(text)).toBe(choice);
  });
});

describe('normalText', () => {
  it('ignores differences in white space and, if so requested, in case', () => {
    expect(normalText('  A\n\tb  c ', false)).toBe('A b c');
    expect(normalText('A b', true)).toBe('a b');
    expect(normalText('e\u0301', false)).toBe('é');
  });
});

describe('withoutDelimiters', () => {
  it.each([
    ['$x$', 'x'],
    [' $$ x $$ ', 'x'],
    ['\\(x\\)', 'x'],
    ['\\[x\\]', 'x'],
    ['x', 'x'],
    ['$', '$'],
    ['$x', '$x'],
  ])('makes %j to %j', (given, bare) => {
    expect(withoutDelimiters(given)).toBe(bare);
  });
});

describe('wordF1', () => {
  it.each<[string, string[], number]>([
    ['The Eiffel Tower!', ['eiffel tower'], 1],
    ['the tower in Paris', ['Eiffel tower'], 2 / 5],
    ['paris paris paris', ['paris'], 0.5],
    ['Rome', ['Paris'], 0],
    ['Rome', ['Paris', 'rome, Italy'], 2 / 3],
    ['the', ['a'], 1],
    ['', ['Paris'], 0],
    ['Paris', ['the'], 0],
  ])('compares the words of %j with those of %j', (answer, expected, f1) => {
    expect(wordF1(answer, expected)).toBeCloseTo(f1);
  });
});
