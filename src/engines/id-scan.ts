/** Largest token id: ids are kept as int32. */
const MAX_ID = 2 ** 31 - 1;

/** Every so many ids the place in the text is noted. More often costs memory, more rarely repeats work after a difference. */
const MARK_EVERY = 256;

/** Texts and ids that are kept to be compared with: some four hundred sessions of 16,000 ids. */
const MEMORY_BYTES = 64 * 1024 * 1024;

const COMMA = 0x2c;
const CLOSE = 0x5d;
const SPACE = 0x20;
const OPEN = 0x5b;
const COLON = 0x3a;
const ZERO = 0x30;

/** An array of ids found in the bytes of a JSON text: `[start, end)` is the array with its brackets. */
export type ScannedIds = { readonly ids: Int32Array; readonly start: number; readonly end: number };

/** `text` is a view of a whole reply, which is kept with it: copying it out would cost more than the rest of the reply holds. `marks[k]` is where, counted from the start of `text`, the id with index `k * MARK_EVERY` begins. */
type Remembered = { readonly text: Buffer; readonly ids: Int32Array; readonly marks: Uint32Array };

/**
 * Reads the prompt ids of replies straight from the bytes: they are most of a reply, and JSON.parse of them costs several
 * times as much. A session's prompts mostly begin as its last one did; what is the same text is not read again.
 */
export class IdScanner {
  /** Latest use last. */
  private readonly memory = new Map<string, Remembered>();
  private memoryBytes = 0;

  /**
   * The first array of non-negative int32 under `key`. Null when there is none or it holds anything but ids; the caller then
   * parses the whole text. `"key":` with a plain closing quote cannot occur inside a JSON string, where quotes are escaped.
   */
  scan(bytes: Buffer, key: string, sessionId: string): ScannedIds | null {
    const bounds = findArray(bytes, key);
    if (bounds === null) return null;
    const text = bytes.subarray(bounds.open + 1, bounds.close);
    const known = this.memory.get(sessionId);
    const read = readIds(text, known ?? null);
    if (read === null) return null;
    this.remember(sessionId, known, { text, ...read });
    return { ids: read.ids, start: bounds.open, end: bounds.close + 1 };
  }

  private remember(sessionId: string, old: Remembered | undefined, entry: Remembered): void {
    if (old !== undefined) {
      this.memory.delete(sessionId);
      this.memoryBytes -= sizeOf(old);
    }
    // Before the second mark nothing is taken over; sessions of short prompts would only fill the memory.
    if (entry.marks.length < 2) return;
    this.memory.set(sessionId, entry);
    this.memoryBytes += sizeOf(entry);
    for (const [oldest, { text, ids, marks }] of this.memory) {
      if (this.memoryBytes <= MEMORY_BYTES) break;
      this.memory.delete(oldest);
      this.memoryBytes -= sizeOf({ text, ids, marks });
    }
  }
}

/** As {@link IdScanner.scan}, with nothing remembered. */
export function scanIds(bytes: Buffer, key: string): ScannedIds | null {
  const bounds = findArray(bytes, key);
  if (bounds === null) return null;
  const read = readIds(bytes.subarray(bounds.open + 1, bounds.close), null);
  return read === null ? null : { ids: read.ids, start: bounds.open, end: bounds.close + 1 };
}

/** `difference` is the first index at which the ids are not those that were sent; null: they are the same. */
export type ComparedIds = { readonly difference: number | null; readonly start: number; readonly end: number };

/**
 * Compares the array under `key` with ids that were sent, at the speed of memory where both are written alike. `sentText` is
 * the text of `sentIds`, one after the other. Null where there is no such array of ids.
 */
export function compareIds(
  bytes: Buffer,
  key: string,
  sentText: Buffer,
  sentIds: readonly Int32Array[],
): ComparedIds | null {
  const bounds = findArray(bytes, key);
  if (bounds === null) return null;
  const { open, close } = bounds;
  const place = { start: open, end: close + 1 };
  if (bytes.compare(sentText, 0, sentText.length, open + 1, close) === 0) return { difference: null, ...place };
  const read = readIds(bytes.subarray(open + 1, close), null);
  return read === null ? null : { difference: firstDifference(read.ids, sentIds), ...place };
}

/** The first index at which `ids` are not those of `parts`, one after the other; null: they are the same. */
export function firstDifference(ids: ArrayLike<number>, parts: readonly Int32Array[]): number | null {
  let at = 0;
  for (const part of parts) {
    for (let i = 0; i < part.length; i++, at++) if (ids[at] !== part[i]) return at;
  }
  return at === ids.length ? null : at;
}

function sizeOf({ text, ids, marks }: Remembered): number {
  return text.buffer.byteLength + ids.byteLength + marks.byteLength;
}

function findArray(bytes: Buffer, key: string): { open: number; close: number } | null {
  const name = `"${key}"`;
  const found = bytes.indexOf(name, 0, 'latin1');
  if (found < 0) return null;
  const colon = skipSpaces(bytes, found + name.length);
  if (bytes[colon] !== COLON) return null;
  const open = skipSpaces(bytes, colon + 1);
  if (bytes[open] !== OPEN) return null;
  const close = bytes.indexOf(CLOSE, open);
  return close < 0 ? null : { open, close };
}

function skipSpaces(bytes: Buffer, from: number): number {
  let at = from;
  while (bytes[at] === SPACE) at++;
  return at;
}

/** Reads comma-separated ids, taking over those of the longest marked beginning that `known` shares with the text. */
function readIds(text: Buffer, known: Remembered | null): { ids: Int32Array; marks: Uint32Array } | null {
  const sharedMarks = known === null ? 0 : countSharedMarks(text, known);
  const keep = sharedMarks * MARK_EVERY;
  const from = known === null || sharedMarks === 0 ? 0 : (known.marks[sharedMarks] as number);
  // One digit and one comma is the shortest that an id can be.
  const capacity = keep + ((text.length - from) >> 1) + 1;
  const ids = new Int32Array(capacity);
  const marks = new Uint32Array(Math.floor(capacity / MARK_EVERY) + 1);
  if (known !== null) {
    ids.set(known.ids.subarray(0, keep));
    marks.set(known.marks.subarray(0, sharedMarks));
  }
  const count = readInts(text, from, ids, keep, marks);
  if (count === null) return null;
  return { ids: trimmed(ids, count), marks: marks.slice(0, Math.ceil(count / MARK_EVERY)) };
}

/** A view where little room is left over, otherwise a copy of its own size. */
function trimmed(ids: Int32Array, count: number): Int32Array {
  return ids.length - count <= MARK_EVERY ? ids.subarray(0, count) : ids.slice(0, count);
}

/** How many whole stretches between marks, from the start on, are the same bytes in both texts. */
function countSharedMarks(text: Buffer, known: Remembered): number {
  let shared = 0;
  let different = known.marks.length;
  while (different - shared > 1) {
    const middle = (shared + different) >> 1;
    const from = known.marks[shared] as number;
    const to = known.marks[middle] as number;
    const same = to <= text.length && text.compare(known.text, from, to, from, to) === 0;
    if (same) shared = middle;
    else different = middle;
  }
  return shared;
}

/** Fills `ids` from index `first` and notes the marks on the way. Returns the number of ids, null for anything else. */
function readInts(text: Buffer, from: number, ids: Int32Array, first: number, marks: Uint32Array): number | null {
  let count = first;
  let at = from;
  const end = text.length;
  while (at < end) {
    at = skipSpaces(text, at);
    if (count % MARK_EVERY === 0) marks[count / MARK_EVERY] = at;
    const start = at;
    let value = 0;
    let digit = (text[at] as number) - ZERO;
    while (digit >= 0 && digit <= 9) {
      value = value * 10 + digit;
      digit = (text[++at] as number) - ZERO;
    }
    if (at === start) return at >= end && count === 0 ? 0 : null;
    if (value > MAX_ID) return null;
    ids[count++] = value;
    if (at < end && text[at] === SPACE) at = skipSpaces(text, at);
    if (at < end && text[at] !== COMMA) return null;
    at++;
    // A comma at the very end promises an id that is not there.
    if (at === end) return null;
  }
  return count;
}
