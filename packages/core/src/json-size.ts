import { MIB } from './bytes.ts';
import { FloeError } from './errors.ts';

/**
 * Maximum size of a task as JSON in bytes, which suffices for a task with its files. It holds for the body of a submission and for a task that
 * is made from a template.
 */
export const MAX_TASK_BYTES = 8 * MIB;
/**
 * Maximum number of JSON values in a request body and in a task: four times as many as the heartbeat of the largest node has. Parsing a body
 * of this many empty objects takes 0.1 s.
 */
export const MAX_TASK_VALUES = 200_000;

/** Size of a value as JSON. */
export type JsonSize = {
  /** Length of the JSON text in bytes of UTF-8. */
  readonly bytes: number;
  /** Length of the JSON text in bytes inside a JSON string, where its quotes and backslashes are escaped once more. */
  readonly quotedBytes: number;
  /** Number of values: the value itself, and all elements and members below it. */
  readonly values: number;
};

/**
 * Throws `body_too_large` for a task that is larger than a submitted task may be. `subject` begins the message, and `path` is the field of the
 * task that the details name.
 */
export function requireTaskSize({ bytes, values }: JsonSize, subject: string, path: string): void {
  if (bytes <= MAX_TASK_BYTES && values <= MAX_TASK_VALUES) return;
  const message =
    `${subject} has ${bytes} bytes and ${values} values of JSON, and a task has at most ${MAX_TASK_BYTES} bytes and ` +
    `${MAX_TASK_VALUES} values; use shorter fields or fewer placeholders`;
  const details = { path, bytes, limit_bytes: MAX_TASK_BYTES, values, limit_values: MAX_TASK_VALUES };
  throw new FloeError('body_too_large', message, details);
}

/**
 * Returns the size that `JSON.stringify` would give a value of parsed JSON, without building the text. `known` remembers the sizes of objects,
 * so that parts of one value are measured once.
 */
export function jsonSize(value: unknown, known: Map<object, JsonSize> = new Map()): JsonSize {
  if (typeof value === 'string') {
    const { bytes, quotedBytes } = textSize(value);
    return { bytes: bytes + 2, quotedBytes: quotedBytes + 4, values: 1 };
  }
  if (typeof value !== 'object' || value === null) {
    const { length } = String(value);
    return { bytes: length, quotedBytes: length, values: 1 };
  }
  const measured = known.get(value);
  if (measured !== undefined) return measured;
  const size = Array.isArray(value)
    ? containerSize(value.map((element) => jsonSize(element, known)))
    : containerSize(Object.entries(value).map(([key, member]) => memberSize(key, jsonSize(member, known))));
  known.set(value, size);
  return size;
}

/** Returns the size of an array or object with these elements or members. */
export function containerSize(parts: readonly JsonSize[]): JsonSize {
  const punctuation = 2 + Math.max(0, parts.length - 1);
  let [bytes, quotedBytes, values] = [punctuation, punctuation, 1];
  for (const part of parts) {
    bytes += part.bytes;
    quotedBytes += part.quotedBytes;
    values += part.values;
  }
  return { bytes, quotedBytes, values };
}

/** Returns the size of a member of an object: its key, the colon and its value. */
export function memberSize(key: string, value: JsonSize): JsonSize {
  const { bytes, quotedBytes } = textSize(key);
  return {
    bytes: bytes + 3 + value.bytes,
    quotedBytes: quotedBytes + 5 + value.quotedBytes,
    values: value.values,
  };
}

/** Returns the length of a text in bytes inside a JSON string, and inside a JSON text that is itself inside a JSON string. */
function textSize(text: string): Pick<JsonSize, 'bytes' | 'quotedBytes'> {
  let [bytes, quotedBytes] = [0, 0];
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit === 0x22 || unit === 0x5c) {
      bytes += 2;
      quotedBytes += 4;
    } else if (unit < 0x20) {
      // Five control characters have a short escape such as \n; the escapes of the others have six characters.
      const isShort = unit >= 0x08 && unit <= 0x0d && unit !== 0x0b;
      bytes += isShort ? 2 : 6;
      quotedBytes += isShort ? 3 : 7;
    } else if (unit < 0x80) {
      bytes += 1;
      quotedBytes += 1;
    } else if (unit < 0x800) {
      bytes += 2;
      quotedBytes += 2;
    } else if (unit < 0xd800 || unit > 0xdfff) {
      bytes += 3;
      quotedBytes += 3;
    } else if (unit < 0xdc00 && isLowSurrogate(text.charCodeAt(at + 1))) {
      bytes += 4;
      quotedBytes += 4;
      at++;
    } else {
      // JSON.stringify escapes a surrogate that is not part of a pair.
      bytes += 6;
      quotedBytes += 7;
    }
  }
  return { bytes, quotedBytes };
}

function isLowSurrogate(unit: number): boolean {
  return unit >= 0xdc00 && unit <= 0xdfff;
}
