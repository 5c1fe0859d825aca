import fc from 'fast-check';
import { expect, test } from 'vitest';
import { CappedOutput } from '../../../src/runtimes/spawn/capped-output.ts';

test('keeps the first and the last half of the budget of any stream, and counts the rest', () => {
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

test('holds bytes, not chunks: millions of single ones stay what they are', () => {
  const output = new CappedOutput(1_000_000);
  const one = Buffer.from('x');
  for (let i = 0; i < 3_000_000; i++) output.push(one);
  expect(output.bytes()).toHaveLength(1_000_000);
  expect(output.droppedBytes).toBe(2_000_000);
});
