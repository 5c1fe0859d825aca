import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { onAbort } from './abort.ts';
import { systemClock } from './clock.ts';

/** Maximum number of characters of a failed tool's stderr, taken from its end, that an error message quotes. */
const STDERR_CHARS = 1_000;

/** Name of the environment variable that marks all processes of a tool with the directory on which the tool works. */
export const INSTALLATION_MARK = 'FLOE_INSTALLING';

export type ToolOptions = {
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  /** Time in milliseconds after which the tool is killed. By default the tool has no time limit. */
  readonly timeoutMs?: number;
  /** Called with each part of the tool's stdout. By default the output is dropped. Must not throw. */
  readonly onOutput?: (text: string) => void;
  /** Kills the tool and all processes that it started. */
  readonly signal: AbortSignal;
};

export type ToolFailure = {
  /** Whether the tool failed because its program does not exist. */
  readonly missing: boolean;
  /** The end of the tool's stderr, or the error's message when stderr is empty. */
  readonly reason: string;
  readonly cause: unknown;
};

/**
 * Runs a program with an empty stdin. Resolves with `null` when it exited with 0, and otherwise with a description of the failure. When the
 * signal aborts, rejects with its reason after the program and all processes of its group have ended.
 */
export async function runTool(command: readonly string[], options: ToolOptions): Promise<ToolFailure | null> {
  const { timeoutMs, signal } = options;
  signal.throwIfAborted();
  let timedOut = false;
  const tool = startTool(command, options);
  const cancelTimer =
    timeoutMs === undefined
      ? () => {}
      : systemClock.schedule(timeoutMs, () => {
          timedOut = true;
          tool.kill();
        });
  const release = onAbort(signal, tool.kill);
  try {
    const failure = await tool.ended;
    signal.throwIfAborted();
    if (failure === null || !timedOut) return failure;
    return { ...failure, reason: `it was killed after ${timeoutMs} ms; ${failure.reason}` };
  } finally {
    release();
    cancelTimer();
  }
}

/** Starts the tool as the leader of a process group, so that Ctrl-C in a terminal does not reach it and `kill` ends all of its processes. */
function startTool(
  [program = '', ...args]: readonly string[],
  { cwd, env, onOutput }: ToolOptions,
): { readonly ended: Promise<ToolFailure | null>; readonly kill: () => void } {
  const child = spawn(program, args, {
    cwd,
    env: { ...env, [INSTALLATION_MARK]: cwd },
    detached: true,
    stdio: ['ignore', onOutput === undefined ? 'ignore' : 'pipe', 'pipe'],
  });
  if (onOutput !== undefined) child.stdout?.setEncoding('utf8').on('data', onOutput);
  let errorOutput = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    errorOutput = (errorOutput + chunk.toString()).slice(-STDERR_CHARS);
  });
  const ended = once(child, 'close').then(
    ([code, signalName]: (number | string | null)[]): ToolFailure | null => {
      if (code === 0) return null;
      const cause = new Error(`${program} ended with ${signalName ?? `exit code ${code}`}`);
      return { missing: false, reason: errorOutput.trim() || cause.message, cause };
    },
    (cause: NodeJS.ErrnoException): ToolFailure => ({
      missing: cause.code === 'ENOENT',
      reason: cause.message,
      cause,
    }),
  );
  const kill = (): void => {
    try {
      if (child.pid !== undefined) process.kill(-child.pid, 'SIGKILL');
    } catch {
      // `kill` fails when all processes of the child's group have already ended.
    }
  };
  return { ended, kill };
}
