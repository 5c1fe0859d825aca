import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { joinedRouting, routedExpertsOf } from '../../../src/engines/vllm/routing.ts';
import type { RoutedExperts } from '../../../src/reply.ts';

/** Returns a .npy file in base64 as numpy writes it: the header is padded so that the data begins at a multiple of 64 bytes. */
function npy(descr: string, shape: readonly number[], data: Buffer, { version = 1, order = 'False' } = {}): string {
  const sizes = shape.length === 1 ? `${shape[0]},` : shape.join(', ');
  const dict = `{'descr': '${descr}', 'fortran_order': ${order}, 'shape': (${sizes}), }`;
  const preamble = version === 1 ? 10 : 12;
  const header = `${dict.padEnd(Math.ceil((preamble + dict.length + 1) / 64) * 64 - preamble - 1)}\n`;
  const length = Buffer.alloc(version === 1 ? 2 : 4);
  length.writeUIntLE(header.length, 0, length.length);
  const magic = Buffer.from('\x93NUMPY', 'latin1');
  return Buffer.concat([magic, Buffer.of(version, 0), length, Buffer.from(header, 'latin1'), data]).toString('base64');
}

const DTYPES = [
  ['uint8', '|u1', 1],
  ['uint16', '<u2', 2],
  ['int32', '<i4', 4],
] as const;

const rowsOf = fc.record({
  dtype: fc.constantFrom(...DTYPES),
  rows: fc.integer({ min: 0, max: 20 }),
  layers: fc.integer({ min: 1, max: 4 }),
  experts: fc.integer({ min: 1, max: 4 }),
  seed: fc.integer({ min: 0, max: 255 }),
});

describe('routed experts', () => {
  it('are read without loss in every type and shape, in either notation', () => {
    fc.assert(
      fc.property(rowsOf, fc.constantFrom(1, 2, 3), ({ dtype, rows, layers, experts, seed }, version) => {
        const [name, descr, bytes] = dtype;
        const shape = [rows, layers, experts] as const;
        const data = Buffer.from(
          Array.from({ length: rows * layers * experts * bytes }, (_, i) => (i * 31 + seed) % 256),
        );
        const expected = { dtype: name, shape: [...shape], start: 0, data };
        expect(routedExpertsOf(npy(descr, shape, data, { version }), rows + 1)).toEqual(expected);
        const object = { data: data.toString('base64'), shape: [...shape], dtype: name };
        expect(routedExpertsOf(object, rows + 1)).toEqual(expected);
        expect(routedExpertsOf({ ...object, start: 5 }, rows + 6)).toEqual({ ...expected, start: 5 });
      }),
    );
  });

  it('are null when they are not reported', () => {
    expect(routedExpertsOf(null, 7)).toBe(null);
    expect(routedExpertsOf(undefined, 7)).toBe(null);
  });

  const data = Buffer.alloc(6);
  const wrong: [string, Parameters<typeof routedExpertsOf>[0], RegExp][] = [
    ['too few rows', npy('|u1', [6, 1, 1], data), /has 6 rows from position 0 on, not 7/],
    [
      'rows of the last token too',
      { data: data.toString('base64'), shape: [6, 1, 1], dtype: 'uint8', start: 2 },
      /has 6 rows from position 2 on, not 5/,
    ],
    ['another type', npy('<f4', [7, 1, 1], data), /is of type "<f4"/],
    ['the other byte order', npy('>u2', [7, 1, 1], data), /is of type ">u2"/],
    ['another order', npy('|u1', [7, 1, 1], data, { order: 'True' }), /not in C order/],
    ['two dimensions', npy('|u1', [7, 1], data), /has the shape \[7, 1\]/],
    ['fewer bytes than the shape', npy('|u1', [7, 1, 1], data), /has 6 bytes, its shape 7/],
    ['more bytes than the shape', npy('|u1', [7, 1, 1], Buffer.alloc(8)), /has 8 bytes, its shape 7/],
    [
      'data that is not a .npy file',
      Buffer.from('PK and more than a few bytes').toString('base64'),
      /not a \.npy file/,
    ],
    ['nothing', '', /not a \.npy file/],
    ['a header that does not end', npy('|u1', [7, 1, 1], data).slice(0, 40), /ends within its header/],
    ['text that is not base64', '????', /not base64/],
    ['an object of another type', { data: '', shape: [7, 1, 1], dtype: 'float32' }, /dtype is float32/],
    ['an object of another shape', { data: '', shape: [7], dtype: 'uint8' }, /has the shape \[7\]/],
  ];
  it.each(wrong)('are rejected with %s', (_, foreign, message) => {
    expect(() => routedExpertsOf(foreign, 8)).toThrow(
      expect.objectContaining({ code: 'engine_error', message: expect.stringMatching(message) }),
    );
  });

  const experts = (start: number, values: number[]): RoutedExperts => ({
    dtype: 'uint8',
    shape: [values.length, 1, 1],
    start,
    data: Buffer.from(values),
  });

  it('are those of the later call for a resumed reply, preceded by earlier rows', () => {
    expect(joinedRouting(experts(0, [1, 2, 3]), experts(0, [1, 2, 3, 4]))).toEqual(experts(0, [1, 2, 3, 4]));
    expect(joinedRouting(experts(1, [2, 3]), experts(3, [4, 5]))).toEqual(experts(1, [2, 3, 4, 5]));
    expect(joinedRouting(experts(1, [2, 3, 9]), experts(3, [4, 5]))).toEqual(experts(1, [2, 3, 4, 5]));
    expect(joinedRouting(null, experts(3, [4]))).toEqual(experts(3, [4]));
    expect(joinedRouting(experts(0, [1]), null)).toBe(null);
  });

  it('are null for a resumed reply with a gap, or of two types', () => {
    expect(joinedRouting(experts(0, [1, 2]), experts(3, [4]))).toBe(null);
    expect(joinedRouting({ ...experts(0, [1, 2, 3]), dtype: 'int32' }, experts(3, [4]))).toBe(null);
  });
});
