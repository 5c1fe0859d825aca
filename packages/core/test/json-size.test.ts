import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { jsonSize, MAX_TASK_BYTES, MAX_TASK_VALUES, requireTaskSize } from '../src/json-size.ts';

describe('jsonSize', () => {
  const text = fc.string({ unit: 'binary' });
  const leaf = fc.oneof(
    fc.string({ unit: fc.constantFrom('"', '\\', '\n', '\v', '\u007f', 'é', '漢', '😀', '\ud83d', '\ude00') }),
    text,
  );
  const json = fc.oneof(fc.jsonValue({ stringUnit: 'binary' }), fc.array(leaf), fc.dictionary(leaf, fc.jsonValue()));

  it('equals the lengths of the texts that JSON.stringify makes', () => {
    fc.assert(
      fc.property(json, (value) => {
        const written = JSON.stringify(value);
        expect(jsonSize(value)).toMatchObject({
          bytes: Buffer.byteLength(written),
          quotedBytes: Buffer.byteLength(JSON.stringify(written)) - 2,
        });
      }),
    );
  });

  it('counts a value and all below it', () => {
    expect(jsonSize({ a: [1, { b: null }], c: 'x' }).values).toBe(6);
  });

  it('measures an object once that a value holds many times', () => {
    let shared: object = { text: 'x' };
    for (let level = 0; level < 60; level++) shared = [shared, shared];
    expect(jsonSize(shared).values).toBeGreaterThan(2 ** 60);
  });
});

describe('requireTaskSize', () => {
  const largest = { bytes: MAX_TASK_BYTES, quotedBytes: 0, values: MAX_TASK_VALUES };

  it('accepts the largest task', () => {
    expect(() => requireTaskSize(largest, 'it', 'instruction')).not.toThrow();
  });

  it.each([{ bytes: MAX_TASK_BYTES + 1 }, { values: MAX_TASK_VALUES + 1 }])('refuses a task with %j', (more) => {
    expect(() => requireTaskSize({ ...largest, ...more }, 'it', 'instruction')).toThrow(
      expect.objectContaining({ code: 'body_too_large', details: expect.objectContaining({ path: 'instruction' }) }),
    );
  });
});
