import { abortAfter, asFloeError, type Clock, FloeError } from '@floe-rl/core';
import type { ExecResult, Runtime } from '@floe-rl/sandbox';

/** The result of work that has a time limit: the value that it returned, or the fact that it exceeded the limit. */
export type Timed<T> = { readonly timedOut: false; readonly value: T } | { readonly timedOut: true };

/** Maximum number of characters of each output stream of a command, taken from its end, that are kept in the details of a reward. */
const TAIL_CHARS = 2000;

/**
 * Runs `work` with a signal that aborts after `limitMs` milliseconds or when `parent` aborts. An exceeded limit is returned as a result and
 * not thrown, because the caller decides whether the agent or the task caused it. When `parent` aborts because the evaluator's whole time
 * budget is used up, that also counts as an exceeded limit. Rejects when `work` fails for any other reason.
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
    if (FloeError.is(thrown) && thrown.code === 'deadline_exceeded') return { timedOut: true };
    throw thrown;
  } finally {
    limited.release();
  }
}

/**
 * Whether a command or file operation failed in a way that a process inside the sandbox can cause. The death of the spawn helper does not
 * count, because this helper runs outside the sandbox.
 */
export function isRuntimeFailure(thrown: unknown): thrown is FloeError {
  return FloeError.is(thrown) && thrown.code === 'runtime_failed' && thrown.details.helper !== 'died';
}

/**
 * Returns the error for a command that ended without the output that it must have printed, in a runtime where the agent cannot be the cause.
 * The session is then retried. `what` names the output.
 */
export function outputMissing(evaluator: string, what: string): FloeError {
  return new FloeError(
    'runtime_failed',
    `${evaluator}: a command in the fresh runtime succeeded without printing ${what}; its output was lost`,
    { output: 'lost' },
  );
}

/**
 * Rejects when a runtime cannot run any command. It is called after a failed operation in a runtime that the agent had no access to. It
 * distinguishes a failure of the host from a failure that the agent's files caused.
 */
export async function requireWorking(runtime: Runtime, signal: AbortSignal): Promise<void> {
  await runtime.exec({ command: ':', cwd: '/' }, signal);
}

/**
 * Writes files of the task below a folder, by path. Resolves with the error when the runtime refuses the files although it still runs
 * commands. Another file is then in the way, such as a file that the agent put in the place of a folder.
 */
export async function writeBelow(
  runtime: Runtime,
  folder: string,
  contents: Readonly<Record<string, string>>,
  signal: AbortSignal,
): Promise<FloeError | null> {
  const files = Object.entries(contents).map(([path, content]) => ({ path: `${folder}/${path}`, content }));
  if (files.length === 0) return null;
  try {
    await runtime.writeFiles(files, signal);
    return null;
  } catch (thrown) {
    signal.throwIfAborted();
    await requireWorking(runtime, signal);
    return asFloeError(thrown, 'runtime_failed');
  }
}

/** Describes how a command ended and quotes the end of its output, for the details of a reward. */
export function tailOf(result: ExecResult): Record<string, unknown> {
  return {
    exit_code: result.exitCode,
    signal: result.signal,
    killed_by: result.killedBy,
    stdout_tail: result.stdout.slice(-TAIL_CHARS),
    stderr_tail: result.stderr.slice(-TAIL_CHARS),
  };
}
