import { readFile, stat } from 'node:fs/promises';
import { type Clock, sleep, systemClock } from '../core/clock.ts';
import { asFloeError, FloeError } from '../core/errors.ts';
import type { PrepareAction } from '../schema/index.ts';
import type { ExecResult, Runtime } from './runtime.ts';
import { allowedSource } from './upload-root.ts';

export type PrepareOptions = {
  /** Host directories that upload sources may lie in; empty: no uploads. */
  readonly uploadRoots: readonly string[];
  readonly clock?: Clock | undefined;
};

/** Tail of a failed command's error output that goes into the message. */
const STDERR_CHARS = 2_000;
/** A file is sent in one piece; what is larger belongs into a directory, which is streamed. */
const MAX_UPLOAD_FILE_BYTES = 256 * 1024 * 1024;

/**
 * Runs the actions in order. Rejects with `prepare_failed` (details: `index`, `type`, `stderr`), with `source_forbidden`
 * when an upload source is not below an upload root once all links are followed, or with the signal's reason.
 */
export async function runPrepare(
  runtime: Runtime,
  actions: readonly PrepareAction[],
  options: PrepareOptions,
  signal: AbortSignal,
): Promise<void> {
  for (const [index, action] of actions.entries()) {
    try {
      await runAction(runtime, action, options, signal);
    } catch (thrown) {
      signal.throwIfAborted();
      const error = asFloeError(thrown, 'runtime_failed');
      // A helper that died says nothing of the action: the session is worth another try.
      if (error.code === 'source_forbidden' || (error.code === 'runtime_failed' && error.details.helper === 'died')) {
        throw new FloeError(error.code, `prepare[${index}] (${action.type}): ${error.message}`, {
          ...error.details,
          index,
          type: action.type,
        });
      }
      throw new FloeError(
        'prepare_failed',
        `prepare[${index}] (${action.type}): ${error.message}`,
        { stderr: '', ...error.details, index, type: action.type, cause: error.code },
        error,
      );
    }
  }
}

async function runAction(
  runtime: Runtime,
  action: PrepareAction,
  options: PrepareOptions,
  signal: AbortSignal,
): Promise<void> {
  switch (action.type) {
    case 'write_file': {
      const { target, content, mode } = action;
      return runtime.writeFiles([{ path: target, content, mode }], signal);
    }
    case 'upload_file': {
      const source = await allowedSource(action.source, options.uploadRoots);
      const info = await stat(source);
      if (!info.isFile()) throw new FloeError('prepare_failed', `${action.source} is not a regular file`);
      if (info.size > MAX_UPLOAD_FILE_BYTES) {
        throw new FloeError('prepare_failed', `${action.source} is larger than ${MAX_UPLOAD_FILE_BYTES} bytes`);
      }
      const file = { path: action.target, content: await readFile(source), mode: info.mode & 0o777 };
      return runtime.writeFiles([file], signal);
    }
    case 'upload_dir': {
      const source = await allowedSource(action.source, options.uploadRoots);
      if (!(await stat(source)).isDirectory()) {
        throw new FloeError('prepare_failed', `${action.source} is not a directory`);
      }
      return runtime.uploadDir(source, action.target, signal);
    }
    case 'exec':
      return runCommand(runtime, action, options.clock ?? systemClock, signal);
  }
}

async function runCommand(
  runtime: Runtime,
  action: Extract<PrepareAction, { type: 'exec' }>,
  clock: Clock,
  signal: AbortSignal,
): Promise<void> {
  const { command, cwd, env, max_attempts, retry_backoff_seconds } = action;
  for (let attempt = 1; ; attempt++) {
    const result = await runtime.exec({ command, cwd, env }, signal);
    if (result.exitCode === 0 && result.killedBy === null) return;
    if (attempt >= max_attempts) throw commandFailure(result, attempt);
    // Doubles from try to try, as a command that fails for want of something remote needs.
    await sleep(clock, retry_backoff_seconds * 1000 * 2 ** (attempt - 1), signal);
  }
}

function commandFailure(result: ExecResult, attempts: number): FloeError {
  const stderr = result.stderr.trim().slice(-STDERR_CHARS);
  const how =
    result.killedBy !== null
      ? `exceeded the limit on ${result.killedBy}`
      : result.exitCode === null
        ? `was ended by ${result.signal}`
        : `exited with ${result.exitCode}`;
  return new FloeError('prepare_failed', `the command ${how} (try ${attempts}): ${stderr}`, {
    stderr,
    exit_code: result.exitCode,
    attempts,
  });
}
