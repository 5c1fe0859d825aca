import { describe, expect, it } from 'vitest';
import { LineReader } from '../../src/channel/line-reader.ts';

function linesOf(chunks: readonly string[], maxBytes = 10): { lines: string[]; isShort: boolean } {
  const lines: string[] = [];
  const reader = new LineReader(maxBytes, (line) => lines.push(line.toString()));
  const isShort = chunks.map((chunk) => reader.push(Buffer.from(chunk))).every((one) => one);
  return { lines, isShort };
}

describe('the reader of lines', () => {
  it.each([
    ['one line in one chunk', ['abc\n'], ['abc']],
    ['several lines in one chunk, the last one incomplete', ['a\nb\n\nc'], ['a', 'b', '']],
    ['a line in several chunks', ['a', 'b', 'c\nd', '\n'], ['abc', 'd']],
    ['nothing', [], []],
  ])('splits %s', (_, chunks, lines) => {
    expect(linesOf(chunks)).toEqual({ lines, isShort: true });
  });

  it('reports a line that is too long, complete or not', () => {
    expect(linesOf(['0123456789\n']).isShort).toBe(true);
    expect(linesOf(['01234567890\n']).isShort).toBe(false);
    expect(linesOf(['012345', '678901']).isShort).toBe(false);
  });
});
