import { writePadded, writeUint } from './decimal.ts';

/** 9 digits tell any two float32 apart. */
const MOST_DIGITS = 9;
/** Between these the scale that makes a value a whole number of {@link MOST_DIGITS} digits is a power of ten that a double holds exactly. */
const FAST_FROM = 1e-12;
const FAST_BELOW = 1e5;
/** Smaller values are written with an exponent. */
const PLAIN_FROM = 1e-5;
/** Longest output: `-0.0000` and 9 digits, or `-123456789e-21`, or what `String` gives for the extremes (24). */
export const FLOAT32_MAX_CHARS = 26;

const ZERO = 0x30;
const MINUS = 0x2d;
const POINT = 0x2e;
const EXPONENT = 0x65;

const POWERS_OF_TEN = Float64Array.from({ length: 23 }, (_, exponent) => 10 ** exponent);
const EXPONENT_BITS = 23;
const EXPONENT_MASK = 0xff;
const MANTISSA_MASK = 0x7fffff;
const NEGATIVE_ZERO_BITS = 0x80000000;

/**
 * By a float32's biased exponent e, for the values from 2^(e-127) up to twice that: how many places the point moves so that they are
 * from 10^8 to below 2 * 10^9, which an int32 holds; and half the distance to the next float32 in that scale, never less than 5.
 */
const PLACES = new Int8Array(EXPONENT_MASK + 1);
const HALF_STEP = new Float64Array(EXPONENT_MASK + 1);
for (let e = 0; e <= EXPONENT_MASK; e++) {
  const least = 2 ** (e - 127);
  if (least * 2 < FAST_FROM || least >= FAST_BELOW) continue;
  let places = 0;
  while (least * 10 ** places < 10 ** (MOST_DIGITS - 1)) places++;
  PLACES[e] = places;
  HALF_STEP[e] = 2 ** (e - 151) * 10 ** places;
}
/** The scaled value is off by less than 10^-6; a bound as near as this to a whole number is not decided by it. */
const DOUBT = 1e-5;

const scratch = new Float32Array(1);
const scratchBits = new Uint32Array(scratch.buffer);

/**
 * Writes the shortest decimal that restores the float32 `value` when it is read as JSON (a double) and rounded to
 * float32. `value` must be finite and a float32. Returns the position behind it. Needs {@link FLOAT32_MAX_CHARS} bytes.
 */
export function writeFloat32(bytes: Uint8Array, at: number, value: number): number {
  scratch[0] = value;
  return writeFloat32Bits(bytes, at, value, scratchBits[0] as number);
}

/** {@link writeFloat32} where the float32's bits are at hand. */
export function writeFloat32Bits(bytes: Uint8Array, at: number, value: number, bits: number): number {
  if (bits === 0) {
    bytes[at] = ZERO;
    return at + 1;
  }
  if (bits === NEGATIVE_ZERO_BITS) return writeAscii(bytes, at, '-0');
  const size = Math.abs(value);
  if (size < FAST_FROM || size >= FAST_BELOW) return writeAscii(bytes, at, shortestByTrial(value));
  const exponent = (bits >>> EXPONENT_BITS) & EXPONENT_MASK;
  let places = PLACES[exponent] as number;
  const scaled = size * (POWERS_OF_TEN[places] as number);
  const half = HALF_STEP[exponent] as number;
  const high = scaled + half;
  // Below a power of two the next float32 is half as far away.
  const low = scaled - ((bits & MANTISSA_MASK) === 0 ? half / 2 : half);
  if (isDoubtful(low) || isDoubtful(high)) return writeAscii(bytes, at, shortestByTrial(value));
  // Every whole number above `from` up to `to` restores the value; drop digits for as long as that holds for some.
  let from = low | 0;
  let to = high | 0;
  let dropped = 0;
  for (;;) {
    const shorterFrom = (from / 10) | 0;
    const shorterTo = (to / 10) | 0;
    if (shorterFrom === shorterTo) break;
    from = shorterFrom;
    to = shorterTo;
    dropped++;
  }
  let digits = (scaled / (POWERS_OF_TEN[dropped] as number) + 0.5) | 0;
  if (digits <= from) digits = from + 1;
  else if (digits > to) digits = to;
  places -= dropped;
  let position = at;
  if (value < 0) bytes[position++] = MINUS;
  if (size >= PLAIN_FROM) return writeFixed(bytes, position, digits, places);
  position = writeUint(bytes, position, digits);
  bytes[position++] = EXPONENT;
  bytes[position++] = MINUS;
  return writeUint(bytes, position, places);
}

function isDoubtful(bound: number): boolean {
  const rest = bound - (bound | 0);
  return rest < DOUBT || rest > 1 - DOUBT;
}

function shortestByTrial(value: number): string {
  for (let digits = 1; digits < MOST_DIGITS; digits++) {
    const rounded = Number(value.toPrecision(digits));
    if (Math.fround(rounded) === value) return String(rounded);
  }
  return String(Number(value.toPrecision(MOST_DIGITS)));
}

/** `places` may be negative: zeros in front of the point that `digits` leaves out. */
function writeFixed(bytes: Uint8Array, at: number, digits: number, places: number): number {
  if (places <= 0) return writeUint(bytes, at, digits * (POWERS_OF_TEN[-places] as number));
  if (places >= MOST_DIGITS) {
    bytes[at] = ZERO;
    bytes[at + 1] = POINT;
    return writePadded(bytes, at + 2, digits, places);
  }
  const scale = POWERS_OF_TEN[places] as number;
  const whole = (digits / scale) | 0;
  const position = writeUint(bytes, at, whole);
  bytes[position] = POINT;
  return writePadded(bytes, position + 1, digits - whole * scale, places);
}

function writeAscii(bytes: Uint8Array, at: number, text: string): number {
  for (let i = 0; i < text.length; i++) bytes[at + i] = text.charCodeAt(i);
  return at + text.length;
}
