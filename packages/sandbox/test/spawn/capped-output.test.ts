import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CappedOutput } from '../../src/spawn/capped-output.ts';

describe('CappedOutput', () => {
  it('keeps the start and the end of any stream within the budget and counts the dropped bytes', () => {
    const chunks = fc.array(fc.uint8Array({ maxLength: 9 }), { maxLength: 20 });
    fc.assert(
      fc.property(chunks, fc.integer({ min: 0, max: 40 }), (parts, maxBytes) => {
        const output = new CappedOutput(maxBytes);
        for (const part of parts) output.push(Buffer.from(part));
        const all = Buffer.concat(parts);
        const head = all.subarray(0, Math.ceil(maxBytes / 2));
        const rest = all.subarray(head.length);
        const tail = rest.subarray(Math.max(0, rest.length - Math.floor(maxBytes / 2)));
        expect(output.bytes()).toEqual(Buffer.concat([head, tail]));
        expect(output.droppedBytes).toBe(rest.length - tail.length);
      }),
    );
  });

  it('uses no more memory for a million chunks of one byte than for one large chunk', () => {
    const output = new CappedOutput(1_000_000);
    const one = Buffer.from('x');
    for (let i = 0; i < 3_000_000; i++) output.push(one);
    expect(output.bytes()).toHaveLength(1_000_000);
    expect(output.droppedBytes).toBe(2_000_000);
  });
});
