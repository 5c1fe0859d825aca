import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { usedMemory } from '../../../../test/memory.ts';
import { encodeFrame, type Frame, FrameReader } from '../../src/box/frames.ts';

const LIMITS = { headerBytes: 1_000, bodyBytes: 1_000 };

function read(bytes: Buffer, chunkBytes: number, limits = LIMITS): Frame[] {
  const frames: Frame[] = [];
  const reader = new FrameReader(limits, (frame) => frames.push(frame));
  for (let at = 0; at < bytes.length; at += chunkBytes) reader.push(bytes.subarray(at, at + chunkBytes));
  return frames;
}

describe('frames', () => {
  it('are read as they were written, however their bytes are split', () => {
    const frame = fc.record({
      header: fc.dictionary(fc.string({ maxLength: 10 }), fc.string({ maxLength: 20 }), { maxKeys: 5 }),
      body: fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
    });
    fc.assert(
      fc.property(fc.array(frame), fc.integer({ min: 1, max: 64 }), (frames, chunkBytes) => {
        const bytes = Buffer.concat(frames.flatMap(({ header, body }) => encodeFrame(header, body)));
        expect(read(bytes, chunkBytes)).toEqual(frames);
      }),
    );
  });

  it('take memory for the bytes that have arrived, not for each read or the announced length', () => {
    const bytes = 50_000;
    const limits = { headerBytes: 100, bodyBytes: 2 ** 30 };
    const reader = new FrameReader(limits, () => {});
    const lengths = Buffer.alloc(8);
    lengths.writeUInt32BE(2, 0);
    lengths.writeUInt32BE(2 ** 30, 4);
    const before = usedMemory();
    reader.push(lengths);
    // As in a real connection, the bytes of each read are in a separate buffer.
    for (let at = 0; at < bytes; at++) reader.push(Buffer.allocUnsafeSlow(1));
    expect(usedMemory() - before).toBeLessThan(20 * bytes);
    expect(reader.isInFrame).toBe(true);
  });

  it.each([
    ['header', { headerBytes: 8, bodyBytes: 100 }],
    ['body', { headerBytes: 100, bodyBytes: 8 }],
  ])('with a %s that is longer than allowed are refused before they are complete', (_part, limits) => {
    const frame = Buffer.concat(encodeFrame({ a: 'long text' }, Buffer.alloc(9)));
    expect(() => read(frame.subarray(0, 8), 8, limits)).toThrow('is too long');
  });

  it('whose header is not JSON are refused', () => {
    const frame = Buffer.concat(encodeFrame({ a: 1 }));
    frame.write('}', 8);
    expect(() => read(frame, frame.length)).toThrow(SyntaxError);
  });
});
