const QUOTE = 0x22;
const COMMA = 0x2c;
const COLON = 0x3a;
const OPEN_LIST = 0x5b;
const BACKSLASH = 0x5c;
const CLOSE_LIST = 0x5d;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;

/**
 * Returns the values of a JSON object by key, as the bytes in which they are written, without parsing them. `json` must be a JSON object
 * that is known to be well-formed, because only its structure is read. A value shares memory with `json`.
 */
export function jsonMembers(json: Buffer): Map<string, Buffer> {
  const members = new Map<string, Buffer>();
  for (const part of partsOf(json, OPEN_OBJECT)) {
    const keyFrom = part.indexOf(QUOTE);
    const keyTo = endOfString(part, keyFrom);
    const key = JSON.parse(part.toString('utf8', keyFrom, keyTo)) as string;
    members.set(key, trimmed(part.subarray(part.indexOf(COLON, keyTo) + 1)));
  }
  return members;
}

/**
 * Returns the elements of a JSON array, as the bytes in which they are written. As for {@link jsonMembers}, `json` must be well-formed, and
 * an element shares memory with it.
 */
export function jsonElements(json: Buffer): Buffer[] {
  return [...partsOf(json, OPEN_LIST)].map(trimmed);
}

/** Yields the text of each member of a JSON object or each element of a JSON array. Commas in nested values do not separate parts. */
function* partsOf(json: Buffer, opening: number): Generator<Buffer> {
  const start = json.indexOf(opening) + 1;
  let from = start;
  let depth = 0;
  for (let at = start; at < json.length; at++) {
    const byte = json[at];
    if (byte === QUOTE) at = endOfString(json, at) - 1;
    else if (byte === OPEN_OBJECT || byte === OPEN_LIST) depth++;
    else if (depth > 0 && (byte === CLOSE_OBJECT || byte === CLOSE_LIST)) depth--;
    else if (depth === 0 && (byte === COMMA || byte === CLOSE_OBJECT || byte === CLOSE_LIST)) {
      const part = json.subarray(from, at);
      // A blank part is not yielded. It occurs only in an empty object or array, because the JSON is well-formed.
      if (trimmed(part).length > 0) yield part;
      if (byte !== COMMA) return;
      from = at + 1;
    }
  }
}

/** Returns the position after the closing quote of the string that begins at `from`. */
function endOfString(json: Buffer, from: number): number {
  for (let at = from + 1; at < json.length; at++) {
    if (json[at] === BACKSLASH) at++;
    else if (json[at] === QUOTE) return at + 1;
  }
  return json.length;
}

function trimmed(bytes: Buffer): Buffer {
  let from = 0;
  let to = bytes.length;
  while (from < to && isSpace(bytes[from])) from++;
  while (to > from && isSpace(bytes[to - 1])) to--;
  return bytes.subarray(from, to);
}

function isSpace(byte: number | undefined): boolean {
  return byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;
}
