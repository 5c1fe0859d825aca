/** Functions that read what a harness printed and how it exited. */
import type { z } from 'zod';
import type { HarnessReport, HarnessVerdict } from './harness.ts';

/** Characters of the error output that a failure message includes. */
const STDERR_CHARS = 500;

/** The failure that an exit code other than 0 means, with the end of the error output; `null` for exit code 0. */
export function exitFailure(
  program: string,
  { exitCode, stderr }: HarnessReport,
): (HarnessVerdict & { ok: false }) | null {
  if (exitCode === 0) return null;
  const how = exitCode === null ? `${program} was ended by a signal` : `${program} exited with ${exitCode}`;
  const tail = stderr.trim().slice(-STDERR_CHARS);
  return { ok: false, message: tail === '' ? how : `${how}: ${tail}` };
}

/** Most lines that are parsed. A harness writes far fewer lines with the marker; more come from other programs in the sandbox. */
const MAX_PARSED_LINES = 1_000;

/**
 * The last line of a harness's JSON output that contains the marker and matches the schema; `null` when there is none. Lines are
 * read from the end, because the middle of a long output may be missing, and lines that do not match are skipped. Only lines with
 * the marker are parsed, and a limited number of them, because programs in the sandbox can write to the same output.
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
