/** Largest token id: ids are kept as int32. */
const MAX_ID = 2 ** 31 - 1;

const COMMA = 0x2c;
const CLOSE = 0x5d;
const SPACE = 0x20;
const OPEN = 0x5b;
const COLON = 0x3a;
const ZERO = 0x30;

/** An array of ids found in the bytes of a JSON text: `[start, end)` is the array with its brackets. */
export type ScannedIds = { readonly ids: Int32Array; readonly start: number; readonly end: number };

/**
 * Reads the first array of non-negative integers under `key` straight from the bytes: a prompt's ids are most of a reply, and
 * JSON.parse of them costs several times as much. Null when there is no such array or it holds anything but ids; the
 * caller then parses the whole text. `"key":` with a plain closing quote cannot occur inside a JSON string, where quotes are
 * escaped.
 */
export function scanIds(bytes: Buffer, key: string): ScannedIds | null {
  const name = `"${key}"`;
  const found = bytes.indexOf(name, 0, 'latin1');
  if (found < 0) return null;
  let at = skipSpaces(bytes, found + name.length);
  if (bytes[at] !== COLON) return null;
  at = skipSpaces(bytes, at + 1);
  if (bytes[at] !== OPEN) return null;
  const close = bytes.indexOf(CLOSE, at);
  if (close < 0) return null;
  const ids = readInts(bytes, at + 1, close);
  return ids === null ? null : { ids, start: at, end: close + 1 };
}

function skipSpaces(bytes: Buffer, from: number): number {
  let at = from;
  while (bytes[at] === SPACE) at++;
  return at;
}

function readInts(bytes: Buffer, from: number, to: number): Int32Array | null {
  // One digit and one comma is the shortest that an id can be.
  const ids = new Int32Array(((to - from) >> 1) + 1);
  let count = 0;
  let value = 0;
  let digits = 0;
  for (let at = from; at < to; at++) {
    const byte = bytes[at] as number;
    const digit = byte - ZERO;
    if (digit >= 0 && digit <= 9) {
      value = value * 10 + digit;
      digits++;
    } else if (byte === COMMA) {
      if (digits === 0 || value > MAX_ID) return null;
      ids[count++] = value;
      value = 0;
      digits = 0;
    } else if (byte !== SPACE || (digits > 0 && bytes[at + 1] !== COMMA)) {
      return null;
    }
  }
  if (digits === 0) return count === 0 ? ids.subarray(0, 0) : null;
  if (value > MAX_ID) return null;
  ids[count++] = value;
  return ids.slice(0, count);
}
