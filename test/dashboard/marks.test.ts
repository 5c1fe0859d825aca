import { describe, expect, it } from 'vitest';
import { markedParts } from '../../dashboard/src/marks.ts';

const marked = (text: string, search: string): string =>
  markedParts(text, search)
    .map((part) => (part.isMarked ? `[${part.text}]` : part.text))
    .join('');

describe('the marks of a search', () => {
  it('are whole words in any case', () => {
    expect(marked('Import the important IMPORT', 'import')).toBe('[Import] the important [IMPORT]');
    expect(marked('no such file', '"such file" x')).toBe('no [such] [file]');
    expect(marked('café au lait', 'CAFÉ')).toBe('[café] au lait');
  });

  it('are none for a search without words, and the text stays whole', () => {
    expect(markedParts('a.b', '.*')).toEqual([{ text: 'a.b', isMarked: false }]);
    const long = 'word '.repeat(2_000);
    expect(
      markedParts(long, 'word')
        .map(({ text }) => text)
        .join(''),
    ).toBe(long);
  });
});
