import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GatheredBytes } from '../src/gathered-bytes.ts';

describe('gathered bytes', () => {
  it('are all bytes in their order, however they were split, for one message after the other', () => {
    const message = fc.array(fc.uint8Array({ maxLength: 9_000 }), { maxLength: 20 });
    fc.assert(
      fc.property(fc.array(message, { maxLength: 3 }), fc.boolean(), (messages, isExact) => {
        for (const chunks of messages) {
          const whole = Buffer.concat(chunks);
          const gathered = new GatheredBytes(isExact ? whole.length : 1_000_000);
          for (const chunk of chunks) gathered.add(Buffer.from(chunk));
          expect(gathered.length).toBe(whole.length);
          expect(gathered.take().equals(whole)).toBe(true);
          expect([gathered.length, gathered.take().length]).toEqual([0, 0]);
        }
      }),
      { numRuns: 50 },
    );
  });

  it('do not copy a message of one chunk', () => {
    const chunk = Buffer.from('all');
    const gathered = new GatheredBytes(1_000);
    gathered.add(chunk);
    expect(gathered.take().buffer).toBe(chunk.buffer);
  });

  it('take memory for the bytes that have arrived, not for the announced length or each chunk', () => {
    const gathered = new GatheredBytes(2 ** 30);
    for (let i = 0; i < 10_000; i++) gathered.add(Buffer.from([i & 255]));
    const { buffer, length } = gathered.take();
    expect(length).toBe(10_000);
    expect(buffer.byteLength).toBeLessThanOrEqual(20_000);
  });
});
