import { FRACTION_DIGITS, writeAscii, writeFraction, writeUint } from './decimal.ts';

/** 9 digits tell any two float32 apart. */
const MOST_DIGITS = 9;
/** Between these the scale that makes a value a whole number of {@link MOST_DIGITS} digits is a power of ten that a double holds exactly. */
const FAST_FROM = 1e-12;
const FAST_BELOW = 1e5;
/** Smaller values are written with an exponent. */
const PLAIN_FROM = 1e-5;
/** Values from here on have at most {@link FRACTION_DIGITS} places; those below begin with four zeros. */
const SHORT_FROM = 1e-4;
/** Longest output: `-0.0000` and 9 digits, or `-123456789e-21`, or what `String` gives for the extremes (24). */
const MAX_CHARS = 26;
/** With what may be written beyond it. */
export const FLOAT32_ROOM = MAX_CHARS + FRACTION_DIGITS;

const ZERO = 0x30;
const MINUS = 0x2d;
const POINT = 0x2e;
const EXPONENT = 0x65;

const POWERS_OF_TEN = Float64Array.from({ length: 23 }, (_, exponent) => 10 ** exponent);
/** Near enough to pick the closest of several decimals that all restore a value; a division takes longer than all the rest. */
const INVERSE_POWERS = POWERS_OF_TEN.map((power) => 1 / power);
const EXPONENT_BITS = 23;
const EXPONENT_MASK = 0xff;
const MANTISSA_MASK = 0x7fffff;

const IMPLICIT_BIT = 0x800000;

/**
 * By a float32's biased exponent e, for the values from 2^(e-127) up to twice that: the value of the last bit of the mantissa; how many
 * places the point moves so that they are from 10^8 to below 2 * 10^9, which an int32 holds; the last bit in that scale, twice the
 * distance to where rounding takes another value.
 */
const LAST_BIT = Float64Array.from({ length: EXPONENT_MASK + 1 }, (_, e) => 2 ** (e - 150));
const PLACES = new Int8Array(EXPONENT_MASK + 1);
const SCALED_LAST_BIT = new Float64Array(EXPONENT_MASK + 1);
for (let e = 0; e <= EXPONENT_MASK; e++) {
  const least = 2 ** (e - 127);
  if (least * 2 < FAST_FROM || least >= FAST_BELOW) continue;
  let places = 0;
  while (least * 10 ** places < 10 ** (MOST_DIGITS - 1)) places++;
  PLACES[e] = places;
  SCALED_LAST_BIT[e] = 2 ** (e - 150) * 10 ** places;
}
/** The scaled value is off by less than 10^-6; a bound as near as this to a whole number is not decided by it. */
const DOUBT = 1e-5;

const scratch = new Float32Array(1);
const scratchBits = new Int32Array(scratch.buffer);

/**
 * Writes the shortest decimal that restores the float32 `value` when it is read as JSON (a double) and rounded to
 * float32. `value` must be finite and a float32. Returns the position behind it. Needs {@link FLOAT32_ROOM}
 * bytes, of which those behind the position are to be written over.
 */
export function writeFloat32(view: DataView, at: number, value: number): number {
  scratch[0] = value;
  return writeFloat32Bits(view, at, scratchBits[0] as number);
}

/** {@link writeFloat32} of the float32 with these bits, an int32: a fraction would be put on the heap for every call. */
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
  // Below a power of two the next float32 is half as far away.
  const low = scaled - (mantissa === IMPLICIT_BIT ? lastBit / 4 : lastBit / 2);
  let from = low | 0;
  let to = high | 0;
  if (isDoubtful(low - from) || isDoubtful(high - to)) return writeSlowly(view, at, bits);
  // Every whole number above `from` up to `to` restores the value; drop digits for as long as that holds for some.
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
  // A shortest decimal lies between the same whole numbers as the value, since those are float32, too.
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

/** `whole` is what `digits` have in front of the point; `places` may be negative, for zeros there that `digits` leaves out. */
function writeFixed(view: DataView, at: number, whole: number, digits: number, places: number): number {
  if (places <= 0) return writeUint(view, at, whole);
  const position = writeUint(view, at, whole);
  view.setUint8(position, POINT);
  return writeFraction(view, position + 1, digits - whole * (POWERS_OF_TEN[places] as number), places);
}

/** The first four places are zeros. */
function writeTiny(view: DataView, at: number, digits: number, places: number): number {
  return writeFraction(view, writeAscii(view, at, '0.0000'), digits, places - 4);
}

function writeScaled(view: DataView, at: number, digits: number, places: number): number {
  const position = writeUint(view, at, digits);
  view.setUint8(position, EXPONENT);
  view.setUint8(position + 1, MINUS);
  return writeUint(view, position + 2, places);
}
