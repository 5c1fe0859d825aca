import { FRACTION_DIGITS, writeAscii, writeFraction, writeUint } from './decimal.ts';

/** Number of decimal digits that suffices to distinguish any two float32 values. */
const MOST_DIGITS = 9;
/**
 * Smallest absolute value that is converted by integer arithmetic, which is fast. From {@link FAST_FROM} to {@link FAST_BELOW}, the power
 * of ten that scales a value to a whole number of {@link MOST_DIGITS} digits is exact in a double. All other values are converted by the
 * slower `toPrecision`.
 */
const FAST_FROM = 1e-12;
/** Upper bound, exclusive, of the absolute values that are converted by fast integer arithmetic; see {@link FAST_FROM}. */
const FAST_BELOW = 1e5;
/** Smallest absolute value that is written without an exponent. */
const PLAIN_FROM = 1e-5;
/**
 * Smallest absolute value that is written by {@link writeFixed}. Smaller values can need more than {@link FRACTION_DIGITS} decimal places.
 * Their decimal places start with four zeros, which {@link writeTiny} writes as a constant.
 */
const SHORT_FROM = 1e-4;
/**
 * Maximum number of characters of one value. The longest forms are `-0.0000` with 9 digits (16 characters), `-123456789e-21` (14) and the
 * result of `String` for very small and very large values (24).
 */
const MAX_CHARS = 26;
/** Maximum number of bytes that writing one value may overwrite, including bytes after the last character. */
export const FLOAT32_BYTES = MAX_CHARS + FRACTION_DIGITS;

const ZERO = 0x30;
const MINUS = 0x2d;
const POINT = 0x2e;
const EXPONENT = 0x65;

const POWERS_OF_TEN = Float64Array.from({ length: 23 }, (_, exponent) => 10 ** exponent);
/**
 * Inverses of the powers of ten. They are used because a division would take longer than all other steps of the conversion. When several
 * decimals of the same length restore a float32, the inverses are precise enough to choose the closest one.
 */
const INVERSE_POWERS = POWERS_OF_TEN.map((power) => 1 / power);
const EXPONENT_BITS = 23;
const EXPONENT_MASK = 0xff;
const MANTISSA_MASK = 0x7fffff;

const IMPLICIT_BIT = 0x800000;

/**
 * For each biased exponent of a float32, the value of the last bit of its mantissa. A float32 with the biased exponent e is at least
 * 2^(e-127) and less than twice that.
 */
const LAST_BIT = Float64Array.from({ length: EXPONENT_MASK + 1 }, (_, e) => 2 ** (e - 150));
/**
 * For each biased exponent of a float32, the number of places that the decimal point is moved before the conversion. The scaled values are at
 * least 10^8 and less than 2 * 10^9, so that they fit into an int32.
 */
const PLACES = new Int8Array(EXPONENT_MASK + 1);
/**
 * For each biased exponent of a float32, the distance between neighbouring float32 values after scaling by {@link PLACES}. A decimal is
 * rounded to a float32 when the two are less than half of this distance apart.
 */
const SCALED_LAST_BIT = new Float64Array(EXPONENT_MASK + 1);
for (let e = 0; e <= EXPONENT_MASK; e++) {
  const least = 2 ** (e - 127);
  if (least * 2 < FAST_FROM || least >= FAST_BELOW) continue;
  let places = 0;
  while (least * 10 ** places < 10 ** (MOST_DIGITS - 1)) places++;
  PLACES[e] = places;
  SCALED_LAST_BIT[e] = 2 ** (e - 150) * 10 ** places;
}
/**
 * When a bound of the scaled interval is this close to a whole number, the value is converted by `toPrecision` instead. Scaling has an
 * error of up to 10^-6, which could otherwise move the bound to the other side of the whole number.
 */
const DOUBT = 1e-5;

const scratch = new Float32Array(1);
const scratchBits = new Int32Array(scratch.buffer);

/**
 * Writes the shortest decimal that restores the float32 `value` when it is read as JSON (a double) and rounded to float32. Returns the
 * position after the last character. `value` must be a finite float32. May write {@link FLOAT32_BYTES} bytes; the caller must overwrite
 * those after the returned position. The function is hand-written because JavaScript only prints doubles, and a trajectory has a logprob
 * for every token.
 */
export function writeFloat32(view: DataView, at: number, value: number): number {
  scratch[0] = value;
  return writeFloat32Bits(view, at, scratchBits[0] as number);
}

/**
 * Does the same as {@link writeFloat32} for a float32 that is given by its bits as an int32. This is faster, because a fractional number as
 * an argument would be allocated on the heap.
 */
export function writeFloat32Bits(view: DataView, at: number, bits: number): number {
  if (bits === 0) {
    view.setUint8(at, ZERO);
    return at + 1;
  }
  const exponent = (bits >>> EXPONENT_BITS) & EXPONENT_MASK;
  const mantissa = (bits & MANTISSA_MASK) | IMPLICIT_BIT;
  const size = mantissa * (LAST_BIT[exponent] as number);
  if (size < FAST_FROM || size >= FAST_BELOW) return writeSlowly(view, at, bits);
  const lastBit = SCALED_LAST_BIT[exponent] as number;
  const scaled = mantissa * lastBit;
  const high = scaled + lastBit / 2;
  // Below a power of two, the next smaller float32 is only half as far away as the next larger one.
  const low = scaled - (mantissa === IMPLICIT_BIT ? lastBit / 4 : lastBit / 2);
  let from = low | 0;
  let to = high | 0;
  if (isDoubtful(low - from) || isDoubtful(high - to)) return writeSlowly(view, at, bits);
  // Every whole number that is greater than `from` and at most `to` restores the float32. The loop drops the last digit of `from` and `to`
  // as long as such a whole number remains between them.
  let dropped = 0;
  for (;;) {
    const shorterFrom = (from / 10) | 0;
    const shorterTo = (to / 10) | 0;
    if (shorterFrom === shorterTo) break;
    from = shorterFrom;
    to = shorterTo;
    dropped++;
  }
  let digits = (scaled * (INVERSE_POWERS[dropped] as number) + 0.5) | 0;
  if (digits <= from) digits = from + 1;
  else if (digits > to) digits = to;
  const places = (PLACES[exponent] as number) - dropped;
  let position = at;
  if (bits < 0) view.setUint8(position++, MINUS);
  // The shortest decimal has the same whole part as the float32 value. The reason is that whole numbers below {@link FAST_BELOW} are float32
  // values themselves, so no whole number lies between the decimal and the value.
  if (size >= SHORT_FROM) return writeFixed(view, position, size | 0, digits, places);
  return size >= PLAIN_FROM ? writeTiny(view, position, digits, places) : writeScaled(view, position, digits, places);
}

function isDoubtful(rest: number): boolean {
  return Math.abs(rest - 0.5) > 0.5 - DOUBT;
}

function writeSlowly(view: DataView, at: number, bits: number): number {
  scratchBits[0] = bits;
  const value = scratch[0] as number;
  if (value === 0) return writeAscii(view, at, '-0');
  for (let digits = 1; digits < MOST_DIGITS; digits++) {
    const rounded = Number(value.toPrecision(digits));
    if (Math.fround(rounded) === value) return writeAscii(view, at, String(rounded));
  }
  return writeAscii(view, at, String(Number(value.toPrecision(MOST_DIGITS))));
}

/**
 * Writes the number `digits` / 10^`places` without an exponent. `whole` is its whole part. `places` can be negative; the number is then
 * whole.
 */
function writeFixed(view: DataView, at: number, whole: number, digits: number, places: number): number {
  if (places <= 0) return writeUint(view, at, whole);
  const position = writeUint(view, at, whole);
  view.setUint8(position, POINT);
  return writeFraction(view, position + 1, digits - whole * (POWERS_OF_TEN[places] as number), places);
}

/** Writes a value whose first four decimal places are zeros. */
function writeTiny(view: DataView, at: number, digits: number, places: number): number {
  return writeFraction(view, writeAscii(view, at, '0.0000'), digits, places - 4);
}

function writeScaled(view: DataView, at: number, digits: number, places: number): number {
  const position = writeUint(view, at, digits);
  view.setUint8(position, EXPONENT);
  view.setUint8(position + 1, MINUS);
  return writeUint(view, position + 2, places);
}
