/** Powers of ten that a double holds exactly. */
const POWERS_OF_TEN = Array.from({ length: 23 }, (_, exponent) => 10 ** exponent);
/** Every decimal of 6 digits survives a float32, so a shorter one that restores the value is found by rounding to 6. */
const FEWEST_DIGITS = 6;
/** 9 digits tell any two float32 apart. */
const MOST_DIGITS = 9;
/** Between these the decimal's scale is within {@link POWERS_OF_TEN} for every digit count. */
const FAST_FROM = 1e-12;
const FAST_BELOW = 1e5;
/** Zeros behind the point up to which plain notation is used; smaller values get an exponent. */
const PLAIN_EXPONENT = -5;
/** Longest output: `-0.0000` and 9 digits, or `-123456789e-21`, or what `String` gives for the extremes (24). */
export const FLOAT32_MAX_CHARS = 26;

const ZERO = 0x30;
const MINUS = 0x2d;
const POINT = 0x2e;
const EXPONENT = 0x65;

/**
 * Writes the shortest decimal that restores the float32 `value` when it is read as JSON (a double) and rounded to
 * float32. `value` must be finite and a float32. Returns the position behind it. Needs {@link FLOAT32_MAX_CHARS} bytes.
 */
export function writeFloat32(bytes: Uint8Array, at: number, value: number): number {
  if (value === 0) return writeAscii(bytes, at, Object.is(value, -0) ? '-0' : '0');
  const size = Math.abs(value);
  if (size < FAST_FROM || size >= FAST_BELOW) return writeAscii(bytes, at, shortestByTrial(value));
  const exponent = Math.floor(Math.log10(size));
  let places = FEWEST_DIGITS - 1 - exponent;
  let digits = Math.round(size * power(places));
  for (let tried = FEWEST_DIGITS; Math.fround(digits / power(places)) !== size; tried++) {
    if (tried > MOST_DIGITS) return writeAscii(bytes, at, shortestByTrial(value));
    digits = Math.round(size * power(++places));
  }
  while (places > 0 && digits % 10 === 0) {
    digits /= 10;
    places--;
  }
  let position = at;
  if (value < 0) bytes[position++] = MINUS;
  if (exponent >= PLAIN_EXPONENT) return writeFixed(bytes, position, digits, places);
  position = writeUint(bytes, position, digits);
  bytes[position++] = EXPONENT;
  bytes[position++] = MINUS;
  return writeUint(bytes, position, places);
}

function power(exponent: number): number {
  return POWERS_OF_TEN[exponent] ?? 10 ** exponent;
}

function shortestByTrial(value: number): string {
  for (let digits = 1; digits < MOST_DIGITS; digits++) {
    const rounded = Number(value.toPrecision(digits));
    if (Math.fround(rounded) === value) return String(rounded);
  }
  return String(Number(value.toPrecision(MOST_DIGITS)));
}

function writeFixed(bytes: Uint8Array, at: number, digits: number, places: number): number {
  if (places === 0) return writeUint(bytes, at, digits);
  const scale = power(places);
  const whole = Math.floor(digits / scale);
  let rest = digits - whole * scale;
  let position = writeUint(bytes, at, whole);
  bytes[position++] = POINT;
  for (let i = places - 1; i >= 0; i--) {
    const next = Math.floor(rest / 10);
    bytes[position + i] = ZERO + rest - next * 10;
    rest = next;
  }
  return position + places;
}

/** Writes a whole number from 0 to 2^53 in decimal; returns the position behind it. */
export function writeUint(bytes: Uint8Array, at: number, value: number): number {
  let length = 1;
  for (let limit = 10; value >= limit; limit *= 10) length++;
  let rest = value;
  for (let i = at + length - 1; i >= at; i--) {
    const next = Math.floor(rest / 10);
    bytes[i] = ZERO + rest - next * 10;
    rest = next;
  }
  return at + length;
}

function writeAscii(bytes: Uint8Array, at: number, text: string): number {
  for (let i = 0; i < text.length; i++) bytes[at + i] = text.charCodeAt(i);
  return at + text.length;
}
