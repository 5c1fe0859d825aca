import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../test/effort.ts';
import { FRACTION_DIGITS, UINT_BYTES, writeFraction, writeUint } from '../../src/json/decimal.ts';
import { FLOAT32_BYTES, writeFloat32 } from '../../src/json/float32.ts';
import { JsonWriter } from '../../src/json/json-writer.ts';

function decimalOf(value: number): string {
  const bytes = Buffer.alloc(64, 0x7e);
  const end = writeFloat32(new DataView(bytes.buffer, bytes.byteOffset, bytes.length), 3, value);
  expect(bytes.subarray(3 + FLOAT32_BYTES)).toEqual(Buffer.alloc(64 - 3 - FLOAT32_BYTES, 0x7e));
  return bytes.toString('latin1', 3, end);
}

/** Returns the smallest number of significant decimal digits from which a float32 can be restored. */
function fewestDigits(value: number): number {
  for (let digits = 1; ; digits++) if (Math.fround(Number(value.toPrecision(digits))) === value) return digits;
}

function digitsOf(decimal: string): number {
  const digits = decimal.replace(/e.*/, '').replace(/[-.]/g, '').replace(/^0+/, '').replace(/0+$/, '');
  return Math.max(digits.length, 1);
}

const anyFloat32 = fc.oneof(
  fc.float({ noNaN: true, noDefaultInfinity: true }),
  fc.float({ min: Math.fround(-30), max: 0, noNaN: true }),
  fc.double({ min: -40, max: 5, noNaN: true }).map((exponent) => Math.fround(-(10 ** exponent))),
);

describe('a float32 written in decimal', () => {
  it('restores the value, is valid JSON and has no unnecessary digit', () => {
    fc.assert(
      fc.property(anyFloat32, (value) => {
        const decimal = decimalOf(value);
        expect(Math.fround(JSON.parse(decimal))).toBe(value);
        if (value !== 0) expect(digitsOf(decimal)).toBe(fewestDigits(value));
      }),
      { numRuns: runs(20_000) },
    );
  });

  it('has no unnecessary digit next to powers of two, where the lower neighbour is closer', () => {
    const bits = new Uint32Array(1);
    const float = new Float32Array(bits.buffer);
    for (let exponent = 1; exponent < 255; exponent++) {
      for (const mantissa of [0, 1, 2, 0x7ffffe, 0x7fffff]) {
        bits[0] = (exponent << 23) | mantissa;
        const value = float[0] ?? Number.NaN;
        const decimal = decimalOf(value);
        expect(Math.fround(JSON.parse(decimal))).toBe(value);
        expect([value, digitsOf(decimal)]).toEqual([value, fewestDigits(value)]);
      }
    }
  });

  it.each([
    [0, '0'],
    [-0, '-0'],
    [-1, '-1'],
    [-0.1, '-0.1'],
    [-1.1920929e-7, '-11920929e-14'],
    [-12.345678, '-12.345678'],
    [-0.00002, '-0.00002'],
    [-0.00001, '-1e-5'],
    [1e-45, '1e-45'],
    [-3.4028234663852886e38, '-3.4028235e+38'],
    [99999.9921875, '99999.99'],
    [100000, '100000'],
    [16777216, '16777216'],
  ])('writes %d as %s', (value, decimal) => {
    expect(decimalOf(Math.fround(value))).toBe(decimal);
  });
});

describe('the digits of numbers', () => {
  it('are written for every whole number and every number of places', () => {
    const any = fc.oneof(
      fc.integer({ min: 0, max: 2 ** 31 - 1 }),
      fc.nat({ max: 20 }).map((i) => (i * 10 ** 8) % 2 ** 31),
    );
    fc.assert(
      fc.property(any, fc.integer({ min: 1, max: FRACTION_DIGITS }), (value, places) => {
        const bytes = Buffer.alloc(64, 0x7e);
        const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
        expect(bytes.toString('latin1', 2, writeUint(view, 2, value))).toBe(String(value));
        expect(bytes.subarray(2 + UINT_BYTES).every((byte) => byte === 0x7e)).toBe(true);
        const whole = value % 10 ** places;
        const padded = String(whole).padStart(places, '0');
        expect(bytes.toString('latin1', 2, writeFraction(view, 2, whole, places))).toBe(padded);
        expect(bytes.subarray(2 + FRACTION_DIGITS).every((byte) => byte === 0x7e)).toBe(true);
      }),
      { numRuns: runs(5_000) },
    );
  });
});

describe('the JSON writer', () => {
  it('writes columns that parse to the original values', () => {
    fc.assert(
      fc.property(
        fc.int32Array(),
        fc.array(anyFloat32).map((values) => Float32Array.from(values)),
        fc.uint8Array({ max: 1 }),
        fc.string({ unit: 'binary' }),
        (ints, floats, digits, text) => {
          const out = new JsonWriter(0);
          out.raw('[');
          out.ints(ints);
          out.raw(',');
          out.floats(floats);
          out.raw(',');
          out.digits(digits);
          out.raw(',');
          out.value(text);
          out.raw(',');
          out.texts(['1', '"ä"']);
          out.raw(']');
          const [a, b, c, d, e] = JSON.parse(out.finish().toString());
          expect(a).toEqual([...ints]);
          expect(Float32Array.from(b)).toEqual(floats);
          expect(c).toEqual([...digits]);
          expect(d).toBe(text);
          expect(e).toEqual([1, 'ä']);
        },
      ),
      { numRuns: 300 },
    );
  });
});
