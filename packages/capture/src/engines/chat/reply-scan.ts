import { MIB } from '@floe-rl/core';
import { LRUCache } from 'lru-cache';

// The scanners in this file are hand-written for speed, because every model call runs them. `npm run bench -- proxy` measures them.

/** Largest token id that is accepted, because ids are stored as int32. */
export const MAX_TOKEN_ID = 2 ** 31 - 1;

/**
 * Number of token ids between two recorded positions in a prompt's JSON text. A smaller number takes more memory. With a larger number,
 * more ids are parsed repeatedly when a prompt differs from the session's previous one.
 */
const IDS_PER_MARK = 256;

/**
 * Maximum size in bytes of the earlier prompts that are kept for comparison, as texts and token ids. It is enough for about 400 sessions
 * with prompts of 16,000 ids.
 */
const MEMORY_BYTES = 64 * MIB;

const COMMA = 0x2c;
const CLOSE = 0x5d;
const SPACE = 0x20;
const OPEN = 0x5b;
const COLON = 0x3a;
const ZERO = 0x30;

/**
 * An array of token ids found in the bytes of a JSON text. `start` and `end` are the offsets of its opening bracket and of the byte after
 * its closing bracket.
 */
export type ScannedIds = { readonly ids: Int32Array; readonly start: number; readonly end: number };

/**
 * The token ids of a session's previous prompt, and their JSON text. `text` is a view into the whole reply, which therefore stays in
 * memory: copying the ids' text would cost more memory than the rest of the reply takes. `marks[k]` is the offset in `text` at which the id
 * with index `k * IDS_PER_MARK` begins; such a recorded position is called a mark.
 */
type KnownIds = { readonly text: Buffer; readonly ids: Int32Array; readonly marks: Uint32Array };

/**
 * Reads the prompt's token ids directly from the bytes of a reply. They are most of a reply, and JSON.parse takes several times as long. A
 * session's prompt usually begins with its previous prompt, and the text that the two prompts share is not parsed again.
 */
export class IdScanner {
  /** The token ids of each session's previous prompt, keyed by session id. */
  private readonly memory = new LRUCache<string, KnownIds>({ maxSize: MEMORY_BYTES, sizeCalculation: sizeOf });

  /**
   * Finds the first array of non-negative int32 numbers under `key`. Returns `null` when there is no such array or it contains anything but
   * token ids; the caller then parses the whole text as JSON. The bytes `"key":` with plain quotes cannot occur inside a JSON string, where
   * quotes are escaped.
   */
  scan(bytes: Buffer, key: string, sessionId: string): ScannedIds | null {
    const bounds = findArray(bytes, key);
    if (bounds === null) return null;
    const { open, close } = bounds;
    // A prompt of at most 256 ids has fewer than two marks (recorded text positions). It is not remembered, because no part of it could be
    // reused.
    if (isShort(open + 1, close)) {
      this.memory.delete(sessionId);
      return scannedIds(bounds, parseShort(bytes, open + 1, close));
    }
    const text = bytes.subarray(open + 1, close);
    const parsed = parseIds(text, this.memory.get(sessionId) ?? null);
    if (parsed === null) return null;
    if (parsed.marks.length < 2) this.memory.delete(sessionId);
    else this.memory.set(sessionId, { text, ...parsed });
    return { ids: parsed.ids, start: open, end: close + 1 };
  }
}

/** Finds the same array as {@link IdScanner.scan}, without remembering earlier prompts. */
export function scanIds(bytes: Buffer, key: string): ScannedIds | null {
  const bounds = findArray(bytes, key);
  return bounds === null ? null : scannedIds(bounds, idsBetween(bytes, bounds.open + 1, bounds.close));
}

function scannedIds({ open, close }: ArrayBounds, ids: Int32Array | null): ScannedIds | null {
  return ids === null ? null : { ids, start: open, end: close + 1 };
}

function idsBetween(bytes: Buffer, from: number, end: number): Int32Array | null {
  return isShort(from, end) ? parseShort(bytes, from, end) : (parseIds(bytes.subarray(from, end), null)?.ids ?? null);
}

/**
 * Result of {@link compareIds}. `difference` is the first index at which the received ids differ from the sent ones, `null` when they are
 * equal. `start` and `end` are the offsets of the array's opening bracket and of the byte after its closing bracket.
 */
export type ComparedIds = { readonly difference: number | null; readonly start: number; readonly end: number };

/**
 * Compares the array of token ids under `key` with the ids that were sent. `sentIds` are the sent ids in one or more arrays, and `sentText`
 * is their JSON text without brackets. The texts are compared first, because this is fastest; the received ids are parsed only when the
 * texts differ. Returns `null` when `bytes` has no array of ids under `key`.
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
  const range = { start: open, end: close + 1 };
  if (bytes.compare(sentText, 0, sentText.length, open + 1, close) === 0) return { difference: null, ...range };
  const ids = idsBetween(bytes, open + 1, close);
  return ids === null ? null : { difference: firstDifference(ids, sentIds), ...range };
}

/** Returns the first index at which `ids` differ from the concatenated `parts`; `null` when they are equal. */
export function firstDifference(ids: ArrayLike<number>, parts: readonly Int32Array[]): number | null {
  let at = 0;
  for (const part of parts) {
    for (let i = 0; i < part.length; i++, at++) if (ids[at] !== part[i]) return at;
  }
  return at === ids.length ? null : at;
}

function sizeOf({ text, ids, marks }: KnownIds): number {
  return text.buffer.byteLength + ids.byteLength + marks.byteLength;
}

type ArrayBounds = { readonly open: number; readonly close: number };

function findArray(bytes: Buffer, key: string): ArrayBounds | null {
  const name = `"${key}"`;
  const at = bytes.indexOf(name, 0, 'latin1');
  if (at < 0) return null;
  const colon = skipSpaces(bytes, at + name.length);
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

/**
 * Parses comma-separated token ids. The beginning that the text shares with `known` is not parsed: its ids are copied from `known`, up to
 * the last mark (recorded text position) in it.
 */
function parseIds(text: Buffer, known: KnownIds | null): { ids: Int32Array; marks: Uint32Array } | null {
  const sharedMarks = known === null ? 0 : countSharedMarks(text, known);
  const sharedCount = sharedMarks * IDS_PER_MARK;
  const from = known === null || sharedMarks === 0 ? 0 : (known.marks[sharedMarks] as number);
  // An id takes at least two bytes, one digit and a comma, so half the text's length bounds the number of ids.
  const capacity = sharedCount + ((text.length - from) >> 1) + 1;
  const ids = new Int32Array(capacity);
  const marks = new Uint32Array(Math.floor(capacity / IDS_PER_MARK) + 1);
  if (known !== null) {
    ids.set(known.ids.subarray(0, sharedCount));
    marks.set(known.marks.subarray(0, sharedMarks));
  }
  const count = parseInts(text, from, text.length, ids, sharedCount, marks);
  if (count === null) return null;
  return { ids: trimmed(ids, count), marks: marks.slice(0, Math.ceil(count / IDS_PER_MARK)) };
}

/** Ids of a short list, before their number is known. It is reused, because memory for an array of numbers takes longer than the ids. */
const shortIds = new Int32Array(IDS_PER_MARK);
const shortMarks = new Uint32Array(1);

/** Whether the bytes between two offsets are too few for more than {@link IDS_PER_MARK} ids. An id takes at least two bytes. */
function isShort(from: number, end: number): boolean {
  return (end - from) >> 1 < IDS_PER_MARK;
}

/** Parses a list for which {@link isShort} is true. Returns `null` for text that is not a list of ids. */
function parseShort(bytes: Buffer, from: number, end: number): Int32Array | null {
  const count = parseInts(bytes, from, end, shortIds, 0, shortMarks);
  return count === null ? null : shortIds.slice(0, count);
}

/** Cuts `ids` to `count` elements: returns a view when little capacity is unused, otherwise a copy of the exact size. */
function trimmed(ids: Int32Array, count: number): Int32Array {
  return ids.length - count <= IDS_PER_MARK ? ids.subarray(0, count) : ids.slice(0, count);
}

/**
 * Returns the largest index `k` for which `text` and the text of `known` are equal up to `known.marks[k]` (a mark is a recorded text
 * position). Returns 0 when they differ before the second mark.
 */
function countSharedMarks(text: Buffer, known: KnownIds): number {
  let shared = 0;
  let different = known.marks.length;
  while (different - shared > 1) {
    const middle = (shared + different) >> 1;
    const from = known.marks[shared] as number;
    const to = known.marks[middle] as number;
    const isSame = to <= text.length && text.compare(known.text, from, to, from, to) === 0;
    if (isSame) shared = middle;
    else different = middle;
  }
  return shared;
}

/**
 * Parses the token ids of `text` between two offsets into `ids` from index `first`, and records the marks (text positions) in `marks`.
 * Returns the number of ids including those before `first`; `null` for text that is not a list of ids.
 */
function parseInts(
  text: Buffer,
  from: number,
  end: number,
  ids: Int32Array,
  first: number,
  marks: Uint32Array,
): number | null {
  let count = first;
  let at = from;
  while (at < end) {
    at = skipSpaces(text, at);
    if (count % IDS_PER_MARK === 0) marks[count / IDS_PER_MARK] = at;
    const start = at;
    let value = 0;
    let digit = (text[at] as number) - ZERO;
    while (digit >= 0 && digit <= 9) {
      value = value * 10 + digit;
      digit = (text[++at] as number) - ZERO;
    }
    if (at === start) return at >= end && count === 0 ? 0 : null;
    if (value > MAX_TOKEN_ID) return null;
    ids[count++] = value;
    if (at < end && text[at] === SPACE) at = skipSpaces(text, at);
    if (at < end && text[at] !== COMMA) return null;
    at++;
    // A list that ends with a comma is malformed.
    if (at === end) return null;
  }
  return count;
}

const NUMBER_PATTERN = String.raw`(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)`;
const ID_PATTERN = String.raw`(0|[1-9]\d{0,9})`;

/** Matches one log-probability entry as vLLM's chat completions write it. Its field `token` holds the prefix `token_id:` and the id. */
const CHAT_ENTRY = new RegExp(
  String.raw`\{"token":"token_id:${ID_PATTERN}","logprob":${NUMBER_PATTERN},"bytes":(?:null|\[[\d,]*\]),"top_logprobs":\[\]\}`,
  'y',
);

/** Matches one log-probability entry as vLLM's `/inference/v1/generate` writes it. */
const GENERATE_ENTRY = new RegExp(
  String.raw`\{"token_id":${ID_PATTERN},"logprob":${NUMBER_PATTERN}(?:,"rank":(?:null|\d+))?,"top_logprobs":\[\]\}`,
  'y',
);

const LOGPROBS_START = Buffer.from('"logprobs":{"content":[');
/** Bytes that end a list of log-probabilities and occur nowhere else in it. */
const LOGPROBS_END = Buffer.from('[]}]');

/**
 * A list of log-probabilities, as one array of token ids and one array of values. `start` and `end` are the offsets of its opening bracket
 * and of the byte after its closing bracket in the reply.
 */
export type ScannedLogprobs = {
  readonly ids: readonly number[];
  readonly values: readonly number[];
  readonly start: number;
  readonly end: number;
};

/**
 * Reads the first list of log-probabilities directly from the bytes of a reply. This list is the largest part of a reply, except for the
 * prompt's ids, and parsing an object for each token takes several times as long. Returns `null` when no list is found or its notation is
 * unexpected; the caller then parses it as JSON. The field's name, with plain quotes, cannot occur inside a JSON string.
 */
export function scanLogprobs(bytes: Buffer): ScannedLogprobs | null {
  const field = bytes.indexOf(LOGPROBS_START);
  const last = field < 0 ? -1 : bytes.indexOf(LOGPROBS_END, field);
  if (last < 0) return null;
  const start = field + LOGPROBS_START.length - 1;
  const end = last + LOGPROBS_END.length;
  const ids: number[] = [];
  const values: number[] = [];
  const text = bytes.toString('latin1', start, end);
  const entry = text.startsWith('{"token":', 1) ? CHAT_ENTRY : GENERATE_ENTRY;
  for (let at = 1; ; at++) {
    entry.lastIndex = at;
    const match = entry.exec(text);
    if (match === null) return null;
    ids.push(Number(match[1]));
    values.push(Number(match[2]));
    at = entry.lastIndex;
    const next = text.charCodeAt(at);
    if (next === CLOSE) return { ids, values, start, end: start + at + 1 };
    if (next !== COMMA) return null;
  }
}
