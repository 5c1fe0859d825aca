import type { HarnessReport, HarnessVerdict } from './harness.ts';

/** Enough of the error output to see what went wrong. */
const STDERR_CHARS = 500;

/** What an exit code says, which is not much: null for 0, otherwise a failure with the end of the error output. */
export function failedExit(what: string, { exitCode, stderr }: HarnessReport): (HarnessVerdict & { ok: false }) | null {
  if (exitCode === 0) return null;
  const how = exitCode === null ? `${what} was ended by a signal` : `${what} exited with ${exitCode}`;
  const tail = stderr.trim().slice(-STDERR_CHARS);
  return { ok: false, message: tail === '' ? how : `${how}: ${tail}` };
}
