import type { z } from 'zod';

/** Lines that carry the mark and are parsed; more than this are not the harness's own. */
const MAX_PARSED_LINES = 1_000;

/**
 * The last line of a harness's JSON output that has the mark and fits the schema; null when there is none. The middle of a
 * long output may be missing, so lines are read from the end and those that make no sense skipped. Only lines with
 * the mark are parsed, and not for ever: what runs in the sandbox can write there, too.
 */
export function lastLine<T extends z.ZodType>(stdout: string, mark: string, schema: T): z.output<T> | null {
  let from = stdout.length;
  for (let tries = 0; tries < MAX_PARSED_LINES && from > 0; tries++) {
    const found = stdout.lastIndexOf(mark, from - 1);
    if (found < 0) return null;
    const start = stdout.lastIndexOf('\n', found) + 1;
    const end = stdout.indexOf('\n', found);
    const parsed = schema.safeParse(jsonOrNull(stdout.slice(start, end < 0 ? stdout.length : end)));
    if (parsed.success) return parsed.data;
    from = start;
  }
  return null;
}

/** The text as JSON, null for what is none. */
export function jsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
