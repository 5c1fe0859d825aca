/** This file reads what a harness printed and how it exited. */
import type { z } from 'zod';
import type { HarnessReport, HarnessVerdict } from './harness.ts';

/** Maximum number of characters of stderr that a failure message quotes. */
const STDERR_CHARS = 500;

/** Returns the failure for an exit code other than 0, with the end of stderr; `null` for exit code 0. */
export function exitFailure(
  program: string,
  { exitCode, stderr }: HarnessReport,
): (HarnessVerdict & { ok: false }) | null {
  if (exitCode === 0) return null;
  const how = exitCode === null ? `${program} was ended by a signal` : `${program} exited with ${exitCode}`;
  const tail = stderr.trim().slice(-STDERR_CHARS);
  return { ok: false, message: tail === '' ? how : `${how}: ${tail}` };
}

/**
 * Maximum number of lines that are parsed. A harness writes far fewer lines with the marker; if there are more, other programs in the
 * sandbox have written them.
 */
const MAX_PARSED_LINES = 1_000;

/**
 * Finds the last line of a harness's JSON output that contains the marker and matches the schema; `null` when no line does. Lines are
 * read from the end, because the middle of a long output may be missing, and lines that do not match are skipped. Only lines with the
 * marker are parsed, and a limited number of them, because programs in the sandbox can write to the same output.
 */
export function lastJsonLine<T extends z.ZodType>(stdout: string, marker: string, schema: T): z.output<T> | null {
  let from = stdout.length;
  for (let parsed = 0; parsed < MAX_PARSED_LINES && from > 0; parsed++) {
    const at = stdout.lastIndexOf(marker, from - 1);
    if (at < 0) return null;
    const start = stdout.lastIndexOf('\n', at) + 1;
    const end = stdout.indexOf('\n', at);
    const result = schema.safeParse(jsonOrNull(stdout.slice(start, end < 0 ? stdout.length : end)));
    if (result.success) return result.data;
    from = start;
  }
  return null;
}

function jsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
