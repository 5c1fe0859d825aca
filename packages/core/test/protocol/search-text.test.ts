import { describe, expect, it } from 'vitest';
import { joinedWithin, phrasesOf, searchedText, wordsOf } from '../../src/protocol/search-text.ts';

describe('the words of a text', () => {
  it('are letters and digits in lower case, without what is longer than a word', () => {
    expect(wordsOf('Fix /usr/bin/Python3, "foo_bar" – Ünïcode ﬁne 你好!')).toBe(
      'fix usr bin python3 foo bar ünïcode fine 你好',
    );
    expect(wordsOf(`a ${'x'.repeat(65)} b\0c`)).toBe('a b c');
  });

  it('of a search are single, except between double quotes', () => {
    expect(phrasesOf('Import error "no such file" import')).toEqual(['import', 'error', 'no such file']);
    expect(phrasesOf('foo.bar "open')).toEqual(['foo', 'bar', 'open']);
    expect(phrasesOf(' "" -!')).toEqual([]);
  });

  it('of a message are its text, thinking and tool calls, the beginning of each', () => {
    const call = { id: 'c', type: 'function' as const, function: { name: 'bash', arguments: '{"cmd":"ls"}' } };
    expect(searchedText({ role: 'assistant', content: 'said', reasoning_content: 'thought', tool_calls: [call] })).toBe(
      'said thought bash {"cmd":"ls"}',
    );
    expect(searchedText({ role: 'user', content: [{ type: 'text', text: 'x'.repeat(3000) }] })).toHaveLength(2000);
  });

  it('are the beginning and the end where all are too many', () => {
    expect(joinedWithin(['begin', ' ', 'x'.repeat(100), 'end'], 12)).toBe('begin\n\nxx\nend');
    expect(joinedWithin(['a', 'b'], 10)).toBe('a\nb');
    expect(joinedWithin(['abc'], 0)).toBe('\n'.slice(0, 1));
  });
});
