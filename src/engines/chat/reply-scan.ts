import { LRUCache } from 'lru-cache';
import { MIB } from '../../core/bytes.ts';

// These scanners are hand-written because every model call runs them; `npm run bench -- proxy` measures them.

/** Largest token id that is accepted, because ids are stored as int32. */
const MAX_ID = 2 ** 31 - 1;

/**
 * Number of ids between two recorded text positions. Closer positions cost memory, wider ones mean that more ids are parsed again after
 * a difference.
 */
const IDS_PER_MARK = 256;

/** Maximum number of bytes of texts and ids that are kept for comparison, enough for about four hundred sessions of 16,000 ids. */
const MEMORY_BYTES = 64 * MIB;

const COMMA = 0x2c;
const CLOSE = 0x5d;
const SPACE = 0x20;
const OPEN = 0x5b;
const COLON = 0x3a;
const ZERO = 0x30;

/**
 * An array of ids found in the bytes of a JSON text. `start` and `end` are the offsets of its opening bracket and of the byte after its
 * closing bracket.
 */
export type ScannedIds = { readonly ids: Int32Array; readonly start: number; readonly end: number };

/**
 * The ids of a session's previous prompt. `text` is a view into the whole reply, which therefore stays in memory: copying the ids' text
 * would cost more memory than the rest of the reply takes. `marks[k]` is the offset in `text` at which the id with index `k *
 * IDS_PER_MARK` begins.
 */
type KnownIds = { readonly text: Buffer; readonly ids: Int32Array; readonly marks: Uint32Array };

/**
 * Reads the prompt ids of replies directly from the bytes: they are most of a reply, and JSON.parse takes several times as long. A
 * session's prompt usually begins with its previous prompt, and the text that the two prompts share is not parsed again.
 */
export class IdScanner {
  /** The ids of the previous prompt, keyed by session id. */
  private readonly memory = new LRUCache<string, KnownIds>({ maxSize: MEMORY_BYTES, sizeCalculation: sizeOf });

  /**
   * Finds the first array of non-negative int32 under `key`. Returns `null` when there is no such array or it holds anything but ids;
   * the caller then parses the whole text. The bytes `"key":` with plain quotes cannot occur inside a JSON string, where quotes are
   * escaped.
   */
  scan(bytes: Buffer, key: string, sessionId: string): ScannedIds | null {
    const bounds = findArray(bytes, key);
    if (bounds === null) return null;
    const text = bytes.subarray(bounds.open + 1, bounds.close);
    const parsed = parseIds(text, this.memory.get(sessionId) ?? null);
    if (parsed === null) return null;
    // A prompt with fewer than two recorded positions is not remembered, because no part of it could be reused and it would only fill
    // the memory.
    if (parsed.marks.length < 2) this.memory.delete(sessionId);
    else this.memory.set(sessionId, { text, ...parsed });
    return { ids: parsed.ids, start: bounds.open, end: bounds.close + 1 };
  }
}

/** Does the same as {@link IdScanner.scan}, without remembering earlier prompts. */
export function scanIds(bytes: Buffer, key: string): ScannedIds | null {
  const bounds = findArray(bytes, key);
  if (bounds === null) return null;
  const parsed = parseIds(bytes.subarray(bounds.open + 1, bounds.close), null);
  return parsed === null ? null : { ids: parsed.ids, start: bounds.open, end: bounds.close + 1 };
}

/**
 * Result of {@link compareIds}: `difference` is the first index at which the received ids differ from the sent ones, `null` when they
 * are equal; `start` and `end` delimit the array in the bytes.
 */
export type ComparedIds = { readonly difference: number | null; readonly start: number; readonly end: number };

/**
 * Compares the array under `key` with the ids that were sent. When the received text equals `sentText`, the JSON text of the
 * concatenated `sentIds`, only bytes are compared, which is fastest. Returns `null` when `bytes` has no array of ids under `key`.
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
  const parsed = parseIds(bytes.subarray(open + 1, close), null);
  return parsed === null ? null : { difference: firstDifference(parsed.ids, sentIds), ...range };
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

function findArray(bytes: Buffer, key: string): { open: number; close: number } | null {
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
 * Parses comma-separated ids. The ids of the longest prefix that the text shares with `known`, up to one of its recorded positions, are
 * copied from `known`.
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
  const count = parseInts(text, from, ids, sharedCount, marks);
  if (count === null) return null;
  return { ids: trimmed(ids, count), marks: marks.slice(0, Math.ceil(count / IDS_PER_MARK)) };
}

/** Cuts `ids` to `count` elements: returns a view when little capacity is unused, otherwise a copy of the exact size. */
function trimmed(ids: Int32Array, count: number): Int32Array {
  return ids.length - count <= IDS_PER_MARK ? ids.subarray(0, count) : ids.slice(0, count);
}

/** Returns how many intervals between recorded positions, counted from the start, have the same bytes in the two texts. */
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
 * Parses the ids of `text` into `ids`, starting at index `first`, and records text positions in `marks`. Returns the number of ids;
 * `null` for text that is not a list of ids.
 */
function parseInts(text: Buffer, from: number, ids: Int32Array, first: number, marks: Uint32Array): number | null {
  let count = first;
  let at = from;
  const end = text.length;
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
    if (value > MAX_ID) return null;
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

/** Matches one log-probability entry as vLLM's chat completions write it, where the field of the token's text holds the id. */
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
 * A list of log-probabilities, as one list of ids and one of values. `start` and `end` are the offsets of its opening bracket and of the
 * byte after its closing bracket in the reply.
 */
export type ScannedLogprobs = {
  readonly ids: readonly number[];
  readonly values: readonly number[];
  readonly start: number;
  readonly end: number;
};

/**
 * Reads the first list of log-probabilities directly from the bytes: next to the prompt's ids it is most of a reply, and parsing an
 * object for each token takes several times as long. Returns `null` for a list in any other notation; the caller then parses that list
 * as JSON. The field's name, with plain quotes, cannot occur inside a JSON string.
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
