import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { EventSplitter } from '../../../src/engines/chat/event-stream.ts';

function split(chunks: readonly Buffer[]): string[] {
  const splitter = new EventSplitter();
  const events: string[] = [];
  for (const chunk of chunks) splitter.push(chunk, (data) => events.push(data.toString()));
  return events;
}

describe('EventSplitter', () => {
  it('returns the same events wherever the bytes are split, with LF and CRLF', () => {
    const texts = fc.array(fc.string({ unit: 'grapheme' }), { maxLength: 5 });
    const cuts = fc.array(fc.nat(400), { maxLength: 12 });
    fc.assert(
      fc.property(texts, cuts, fc.constantFrom('\n', '\r\n'), (data, at, end) => {
        const values = data.map((text) => JSON.stringify(text));
        const bytes = Buffer.from(values.map((text) => `event: x${end}data: ${text}${end}${end}`).join(`: ping${end}`));
        const places = [0, ...at.filter((place) => place < bytes.length).sort((a, b) => a - b), bytes.length];
        const chunks = places.slice(1).map((place, index) => bytes.subarray(places[index], place));
        expect(split(chunks)).toEqual(values);
      }),
    );
  });

  it('joins several data lines, and accepts events without data or without a space after the colon', () => {
    const text = 'data:a\ndata: b\n\nid: 1\n\n: comment\n\ndata:\n\ndata:  c\n\n';
    expect(split([Buffer.from(text)])).toEqual(['a\nb', '', ' c']);
  });

  it('drops an event that the stream does not finish', () => {
    expect(split([Buffer.from('data: a\n\ndata: b\n')])).toEqual(['a']);
  });
});
