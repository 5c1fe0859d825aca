import { abortAfter } from '../core/abort.ts';
import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import type { ExecResult } from '../runtimes/runtime.ts';

/** The result of work with a time limit: its value, or the fact that it exceeded the limit. */
export type Timed<T> = { readonly timedOut: false; readonly value: T } | { readonly timedOut: true };

/** Maximum number of characters of each output stream of a command, taken from its end, that are kept in the details of a reward. */
const TAIL_CHARS = 2000;

/**
 * Runs `work` with a signal that aborts after `limitMs` milliseconds or when `parent` aborts. An exceeded limit is a result and not an
 * error, because it depends on the command whether the agent or the task caused it. Rejects when `work` fails for any other reason.
 */
export async function withinTime<T>(
  clock: Clock,
  limitMs: number,
  parent: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<Timed<T>> {
  const exceeded = new FloeError('deadline_exceeded', `a command of the evaluator ran longer than ${limitMs} ms`);
  const limited = abortAfter(clock, limitMs, () => exceeded, parent);
  try {
    return { timedOut: false, value: await work(limited.signal) };
  } catch (thrown) {
    if (thrown === exceeded) return { timedOut: true };
    throw thrown;
  } finally {
    limited.release();
  }
}

/** Describes how a command ended and what it printed last, for the details of a reward. */
export function tailOf(result: ExecResult): Record<string, unknown> {
  return {
    exit_code: result.exitCode,
    signal: result.signal,
    killed_by: result.killedBy,
    stdout_tail: result.stdout.slice(-TAIL_CHARS),
    stderr_tail: result.stderr.slice(-TAIL_CHARS),
  };
}
