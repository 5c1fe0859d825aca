import type { z } from 'zod';
import { FloeError } from './errors.ts';
import { fieldErrors } from './fields.ts';

/**
 * Deepest nesting of JSON that is accepted. No legitimate request is nested deeper; JSON.stringify and structuredClone fail at about
 * 100,000 levels.
 */
const MAX_DEPTH = 200;

/**
 * Parses untrusted JSON. Throws `malformed_json` on a syntax error, invalid UTF-8 or nesting beyond {@link MAX_DEPTH}, and `body_too_large`
 * when there are more than `maxValues` values. The number of values is limited because the time of parsing depends on it. A megabyte of plain
 * text is parsed in one millisecond, but a megabyte of empty objects and short keys takes 50 to 100 ms.
 */
export function parseJson(body: Buffer | string, maxValues = Number.POSITIVE_INFINITY): unknown {
  const text = typeof body === 'string' ? body : decodeUtf8(body);
  checkStructure(text, maxValues);
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new FloeError('malformed_json', `the body is not valid JSON: ${(cause as Error).message}`, {}, cause);
  }
}

const strictUtf8 = new TextDecoder('utf-8', { fatal: true });

function decodeUtf8(body: Buffer): string {
  try {
    return strictUtf8.decode(body);
  } catch (cause) {
    throw new FloeError('malformed_json', 'the body is not valid UTF-8', {}, cause);
  }
}

/**
 * Throws when the nesting is too deep or there are too many values, before JSON.parse creates any object. Counts brackets and commas
 * outside strings, because every value except the first follows a bracket or a comma.
 */
function checkStructure(text: string, maxValues: number): void {
  let depth = 0;
  let values = 1;
  for (let i = 0; i < text.length; i++) {
    const char = text.charCodeAt(i);
    if (char === 0x22) {
      i = endOfString(text, i);
    } else if (char === 0x7b || char === 0x5b) {
      if (++depth > MAX_DEPTH) {
        throw new FloeError('malformed_json', `the body is nested deeper than ${MAX_DEPTH} levels`);
      }
      values++;
    } else if (char === 0x2c) {
      values++;
    } else if (char === 0x7d || char === 0x5d) {
      depth--;
    }
    if (values > maxValues) throw new FloeError('body_too_large', `the body has more than ${maxValues} values`);
  }
}

/** Returns the index of the quote that closes the string that begins at `start`; the length of the text when no quote closes it. */
function endOfString(text: string, start: number): number {
  let end = start;
  for (;;) {
    end = text.indexOf('"', end + 1);
    if (end < 0) return text.length;
    let backslashes = 0;
    while (text.charCodeAt(end - 1 - backslashes) === 0x5c) backslashes++;
    if (backslashes % 2 === 0) return end;
  }
}

/**
 * Checks a value against a schema and returns the parsed value. Throws `schema_violation` with the path of every invalid field. The message
 * calls the value `name`. `at` is the path of the value in the client's input; the paths of invalid fields begin with it.
 */
export function parseAs<T extends z.ZodType>(schema: T, value: unknown, name: string, at = ''): z.output<T> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issues = parsed.error.issues.map((issue) => ({
    path: [at, ...issue.path.map(String)].filter((part) => part !== '').join('.') || '(whole object)',
    message: issue.message,
  }));
  throw fieldErrors(issues, { input: name });
}
