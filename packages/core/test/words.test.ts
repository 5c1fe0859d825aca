import { expect, it } from 'vitest';
import { lowerCaseWords } from '../src/words.ts';

it.each([
  ['Fix /usr/bin/Python3, "foo_bar"', ['fix', 'usr', 'bin', 'python3', 'foo', 'bar']],
  ['Ünïcode 你好! the the', ['ünïcode', '你好', 'the', 'the']],
  [' -!\0', []],
])('words are runs of letters and digits, in lower case and in order: %j', (text, words) => {
  expect(lowerCaseWords(text)).toEqual(words);
  expect(lowerCaseWords(text, { marks: true })).toEqual(words);
});

it('marks divide a word unless they are part of words', () => {
  expect(lowerCaseWords('हिन्दी e\u0301te\u0301')).toEqual(['ह', 'न', 'द', 'e', 'te']);
  expect(lowerCaseWords('हिन्दी e\u0301te\u0301', { marks: true })).toEqual(['हिन्दी', 'e\u0301te\u0301']);
});
