const ZERO = 0x30;
/** Digits are written four at a time: fewer divisions, and 10,000 entries stay in the processor's cache. */
const GROUP = 10_000;
const GROUP_DIGITS = 4;
const FOURS = Uint8Array.from({ length: GROUP * GROUP_DIGITS }, (_, at) => {
  const place = GROUP_DIGITS - 1 - (at % GROUP_DIGITS);
  return ZERO + (Math.floor(Math.floor(at / GROUP_DIGITS) / 10 ** place) % 10);
});

/** Writes a whole number from 0 to 2^31 - 1 in decimal; returns the position behind it. */
export function writeUint(bytes: Uint8Array, at: number, value: number): number {
  if (value < GROUP) return writeShort(bytes, at, value);
  const high = (value / GROUP) | 0;
  const position = high < GROUP ? writeShort(bytes, at, high) : writeUint(bytes, at, high);
  writeFour(bytes, position, value - high * GROUP);
  return position + GROUP_DIGITS;
}

/** Writes exactly `length` digits of a whole number from 0 to 2^31 - 1, with leading zeros; returns the position behind them. */
export function writePadded(bytes: Uint8Array, at: number, value: number, length: number): number {
  let rest = value;
  let position = at + length;
  while (position - at >= GROUP_DIGITS) {
    const high = (rest / GROUP) | 0;
    position -= GROUP_DIGITS;
    writeFour(bytes, position, rest - high * GROUP);
    rest = high;
  }
  while (position > at) {
    const high = (rest / 10) | 0;
    bytes[--position] = ZERO + rest - high * 10;
    rest = high;
  }
  return at + length;
}

function writeFour(bytes: Uint8Array, at: number, value: number): void {
  const from = value * GROUP_DIGITS;
  bytes[at] = FOURS[from] as number;
  bytes[at + 1] = FOURS[from + 1] as number;
  bytes[at + 2] = FOURS[from + 2] as number;
  bytes[at + 3] = FOURS[from + 3] as number;
}

/** Up to four digits, without leading zeros. */
function writeShort(bytes: Uint8Array, at: number, value: number): number {
  const from = value * GROUP_DIGITS;
  let position = at;
  if (value >= 1000) bytes[position++] = FOURS[from] as number;
  if (value >= 100) bytes[position++] = FOURS[from + 1] as number;
  if (value >= 10) bytes[position++] = FOURS[from + 2] as number;
  bytes[position++] = FOURS[from + 3] as number;
  return position;
}
