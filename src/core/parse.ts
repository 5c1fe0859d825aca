import type { z } from 'zod';
import { FloeError } from './errors.ts';

/** Nesting that a legitimate request never needs; JSON.stringify and structuredClone fail at about 100,000 levels. */
const MAX_DEPTH = 200;

/**
 * Parses untrusted JSON bytes. Throws `malformed_json` on a syntax error, invalid UTF-8 or nesting beyond {@link MAX_DEPTH},
 * and `body_too_large` for more than `maxValues` values: a megabyte of text is parsed in a millisecond, a megabyte of empty
 * objects and small keys in fifty to a hundred.
 */
export function parseJson(body: Buffer | string, maxValues = Number.POSITIVE_INFINITY): unknown {
  const text = typeof body === 'string' ? body : decodeUtf8(body);
  refuseCostlyStructure(text, maxValues);
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
 * Counts brackets and commas outside strings; every value but the first follows one of them. A linear scan that stops early
 * only when it refuses.
 */
function refuseCostlyStructure(text: string, maxValues: number): void {
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
 * Checks a value against a schema. Throws `schema_violation` with the path of every wrong field; `at` is where the value
 * itself is in what the client sent.
 */
export function parseAs<T extends z.ZodType>(schema: T, value: unknown, what: string, at = ''): z.output<T> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issues = parsed.error.issues.map((issue) => ({
    path: [at, ...issue.path.map(String)].filter((part) => part !== '').join('.') || '(whole object)',
    message: issue.message,
  }));
  const first = issues[0];
  throw new FloeError(
    'schema_violation',
    `${what}: ${first ? `${first.path}: ${first.message}` : 'invalid'}${issues.length > 1 ? ` (and ${issues.length - 1} more)` : ''}`,
    { issues },
  );
}
