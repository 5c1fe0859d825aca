import { readFile, realpath, stat } from 'node:fs/promises';
import { sep } from 'node:path';
import { asFloeError, type Clock, FloeError, MIB, sleep, systemClock } from '@floe-rl/core';
import type { PrepareAction } from '@floe-rl/core/schema';
import type { ExecResult, Runtime } from '../api/runtime.ts';
import { pruneGitHistory } from './git-history.ts';

export type PrepareOptions = {
  /** Host directories from which files may be uploaded. When the list is empty, no uploads are allowed. */
  readonly uploadRoots: readonly string[];
  readonly clock?: Clock | undefined;
};

/** Maximum number of characters of a failed command's error output, taken from its end, that the error message quotes. */
const STDERR_CHARS = 2_000;
/**
 * Maximum number of bytes of a single uploaded file, since the whole file is held in memory. An uploaded directory is streamed, so it may
 * contain larger files.
 */
const MAX_UPLOAD_FILE_BYTES = 256 * MIB;

/**
 * Runs the prepare actions of a task in order. Rejects with `prepare_failed` (details: `index`, `type`, `stderr`) when an action fails.
 * Rejects with `source_forbidden` when the real path of an upload source, after resolving all links, is not below an upload root. Rejects
 * with `runtime_failed` when the spawn helper died, or with the reason of `signal`.
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
      // Two errors keep their code instead of becoming `prepare_failed`: a forbidden upload source, and the death of the spawn helper. The
      // action did not cause the helper's death, and with the code `runtime_failed` the session is retried.
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
    case 'prune_git_history':
      return pruneGitHistory(runtime, action.repo, signal);
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
  const { command, cwd, env, user, max_attempts, retry_backoff_seconds } = action;
  const sandbox = user === 'root' ? runtime.asRoot() : runtime;
  for (let attempt = 1; ; attempt++) {
    const result = await sandbox.exec({ command, cwd, env }, signal);
    if (result.exitCode === 0 && result.killedBy === null) return;
    if (attempt >= max_attempts) throw commandFailure(result, attempt);
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
  return new FloeError('prepare_failed', `the command ${how} (attempt ${attempts}): ${stderr}`, {
    stderr,
    exit_code: result.exitCode,
    attempts,
  });
}

/**
 * Resolves all symbolic links of a host path that a task names, and returns the real path. Rejects with `source_forbidden` when the real
 * path is not below an upload root, and with `prepare_failed` when the path is below a root but does not exist.
 */
export async function allowedSource(source: string, uploadRoots: readonly string[]): Promise<string> {
  const roots = await Promise.all(uploadRoots.map((root) => realpath(root).catch(() => null)));
  const real = await realpath(source).catch(() => null);
  const allowed = roots.some(
    (root) => root !== null && real !== null && (real === root || real.startsWith(below(root))),
  );
  if (real !== null && allowed) return real;
  // Only a path below an upload root is reported as missing: the error for any other path must not reveal whether it exists.
  const inside = uploadRoots.some((root) => source.startsWith(below(root)));
  if (real === null && inside) throw new FloeError('prepare_failed', `there is no ${source} on this node`);
  throw new FloeError('source_forbidden', `${source} is not below an upload root of this node`, { source });
}

function below(root: string): string {
  return root.endsWith(sep) ? root : root + sep;
}
