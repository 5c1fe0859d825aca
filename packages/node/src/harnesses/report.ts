/** This file reads the output and the exit code of a harness. */

import { MIB } from '@floe-rl/core';
import type { z } from 'zod';
import type { HarnessReport, HarnessVerdict } from './harness.ts';

/** Maximum number of characters of a harness's stderr, taken from its end, that a failure message quotes. */
const STDERR_CHARS = 500;

/** Returns a failure with the end of stderr when the exit code is not 0; `null` when it is 0. */
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
 * Maximum number of output lines that are parsed in one search for a line with a marker text. A harness writes far fewer lines with its
 * marker; more of them can only come from other programs in the sandbox.
 */
const MAX_PARSED_LINES = 1_000;
/**
 * Maximum total length, in characters, of the output lines that are parsed in one search for a line with a marker text. It is limited
 * because parsing blocks the node's event loop. The lines that a harness itself writes with its marker are far shorter.
 */
const MAX_PARSED_CHARS = 4 * MIB;

/**
 * Finds the last line of a harness's JSON output that contains `marker` and matches `schema`; `null` when no line does. Lines are read from
 * the end, because the middle of a long output may be missing. Other programs in the sandbox can write to the same output, so only lines
 * with the marker are parsed. Their number is limited by {@link MAX_PARSED_LINES} and their total length by {@link MAX_PARSED_CHARS}. A
 * line that would exceed the total length is skipped.
 */
export function lastJsonLine<T extends z.ZodType>(stdout: string, marker: string, schema: T): z.output<T> | null {
  let from = stdout.length;
  let charsLeft = MAX_PARSED_CHARS;
  for (let parsed = 0; parsed < MAX_PARSED_LINES && from > 0; parsed++) {
    const at = stdout.lastIndexOf(marker, from - 1);
    if (at < 0) return null;
    const start = stdout.lastIndexOf('\n', at) + 1;
    const end = stdout.indexOf('\n', at);
    const line = stdout.slice(start, end < 0 ? stdout.length : end);
    from = start;
    if (line.length > charsLeft) continue;
    charsLeft -= line.length;
    const result = schema.safeParse(jsonOrNull(line));
    if (result.success) return result.data;
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
