/**
 * Number of different values of four decimal digits. The functions of this file look up digits in groups of four and store each group with
 * one four-byte write. A write may store up to three bytes beyond the last digit, which the next write overwrites. The functions are
 * hand-written for speed, because token ids and logprobs are most of a trajectory's bytes.
 */
const GROUP = 10_000;
const GROUP_DIGITS = 4;

/** Table of the four digits of each number below {@link GROUP}, leading zeros included, as a little-endian word. */
const PADDED = new Uint32Array(GROUP);
/**
 * Table of the decimal text of each number below {@link GROUP} as a little-endian word. The text has no leading zeros; characters `0` after it
 * fill the word, and are not written.
 */
const BARE = new Uint32Array(GROUP);
/** Table of the number of digits of each number below {@link GROUP}. */
const LENGTH = new Uint8Array(GROUP);
for (let value = 0; value < GROUP; value++) {
  PADDED[value] = wordOf(String(value).padStart(GROUP_DIGITS, '0'));
  BARE[value] = wordOf(String(value).padEnd(GROUP_DIGITS, '0'));
  LENGTH[value] = String(value).length;
}

function wordOf(digits: string): number {
  return Buffer.from(digits, 'latin1').readUInt32LE();
}

/** Maximum number of bytes that {@link writeUint} may write: the ten digits of 2^31 - 1 and three bytes beyond them. */
export const UINT_BYTES = 10 + 3;

/**
 * Writes a whole number from 0 to 2^31 - 1 in decimal digits and returns the position after the last digit. It may overwrite up to {@link
 * UINT_BYTES} bytes from `at` on, even when the number has fewer digits.
 */
export function writeUint(view: DataView, at: number, value: number): number {
  if (value < GROUP) return writeShort(view, at, value);
  const high = (value / GROUP) | 0;
  const position = high < GROUP ? writeShort(view, at, high) : writeUint(view, at, high);
  view.setUint32(position, PADDED[value - high * GROUP] as number, true);
  return position + GROUP_DIGITS;
}

function writeShort(view: DataView, at: number, value: number): number {
  view.setUint32(at, BARE[value] as number, true);
  return at + (LENGTH[value] as number);
}

/** Number of bytes that {@link writeFraction} always writes from its start position on, even when the caller requests fewer digits. */
export const FRACTION_DIGITS = 12;
const FRACTION_HIGH = 10 ** (FRACTION_DIGITS - GROUP_DIGITS);
const FRACTION_HIGH_INVERSE = 1 / FRACTION_HIGH;
/** For each number of decimal places, the factor that extends a fraction with that many places to {@link FRACTION_DIGITS} places. */
const TO_FRACTION = Float64Array.from({ length: FRACTION_DIGITS + 1 }, (_, places) => 10 ** (FRACTION_DIGITS - places));

/**
 * Writes the whole number `digits` in exactly `places` decimal digits (1 to {@link FRACTION_DIGITS}), with leading zeros, and returns the
 * position after the last of them. It always writes {@link FRACTION_DIGITS} bytes from `at` on, so it overwrites bytes after the returned
 * position.
 */
export function writeFraction(view: DataView, at: number, digits: number, places: number): number {
  const fraction = digits * (TO_FRACTION[places] as number);
  // Multiplies by the inverse because a division would take as long as the rest of the function. The addition of 0.5 keeps the product away
  // from whole numbers, so that its rounding error cannot change the digits.
  const high = ((fraction + 0.5) * FRACTION_HIGH_INVERSE) | 0;
  const rest = (fraction - high * FRACTION_HIGH) | 0;
  const middle = (rest / GROUP) | 0;
  view.setUint32(at, PADDED[high] as number, true);
  view.setUint32(at + GROUP_DIGITS, PADDED[middle] as number, true);
  view.setUint32(at + 2 * GROUP_DIGITS, PADDED[rest - middle * GROUP] as number, true);
  return at + places;
}

/** Writes ASCII text and returns the position after the text. */
export function writeAscii(view: DataView, at: number, text: string): number {
  for (let i = 0; i < text.length; i++) view.setUint8(at + i, text.charCodeAt(i));
  return at + text.length;
}
