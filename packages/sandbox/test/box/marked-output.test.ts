import { PassThrough } from 'node:stream';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { MarkedOutput, markerOf } from '../../src/box/marked-output.ts';

const MARKER = markerOf('nonce');

describe('output with markers', () => {
  it('divides the stream at the marker, wherever the chunks divide it', () => {
    const bytes = fc.uint8Array({ maxLength: 40 }).map((array) => Buffer.from(array));
    // This text consists of the marker's characters, so it often contains the start of a marker.
    const tricky = fc
      .array(fc.constantFrom('\x1e', 'n', 'o', 'c'), { maxLength: 20 })
      .map((letters) => Buffer.from(letters.join('')));
    const part = fc.oneof(bytes, tricky);
    fc.assert(
      fc.property(part, part, fc.array(fc.nat(80), { maxLength: 8 }), (before, after, cuts) => {
        fc.pre(!Buffer.concat([before, MARKER]).subarray(0, -1).includes(MARKER));
        const stream = new PassThrough();
        let markers = 0;
        const output = new MarkedOutput(stream, () => {
          markers += 1;
        });
        output.expect(MARKER, 1_000);
        const data = Buffer.concat([before, MARKER, after]);
        let from = 0;
        for (const cut of [...new Set(cuts)].sort((a, b) => a - b)) {
          if (cut <= from || cut >= data.length) continue;
          stream.emit('data', data.subarray(from, cut));
          from = cut;
        }
        stream.emit('data', data.subarray(from));
        expect(markers).toBe(1);
        expect(output.take()).toEqual({ bytes: before, droppedBytes: 0 });
        output.expect(markerOf('next'), 1_000);
        expect(output.take().bytes).toEqual(after);
      }),
    );
  });

  it('keeps the start of a marker that is not completed', () => {
    const stream = new PassThrough();
    const output = new MarkedOutput(stream, () => {});
    output.expect(MARKER, 1_000);
    stream.emit('data', Buffer.from('text\x1eno'));
    expect(output.take().bytes.toString()).toBe('text\x1eno');
  });
});
