import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { MIB } from '../../core/bytes.ts';

const run = promisify(execFile);

/** Maximum number of bytes of output that a tool may print. npm and pip print a warning for each of many packages. */
const MAX_OUTPUT_BYTES = 16 * MIB;
/** Maximum number of characters from the end of stderr that a failure quotes. */
const STDERR_CHARS = 1_000;

type ToolOptions = {
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  /** Time in milliseconds after which the tool is killed; there is no limit when it is left out. */
  readonly timeoutMs?: number;
};

export type ToolFailure = {
  /** Whether the program does not exist. */
  readonly missing: boolean;
  /** The end of the tool's stderr, or the error's message when stderr is empty. */
  readonly reason: string;
  readonly cause: unknown;
};

/** Runs a program with an empty stdin. Returns `null` when it exited with 0, otherwise its failure. */
export async function runTool(
  [program = '', ...args]: readonly string[],
  options: ToolOptions,
): Promise<ToolFailure | null> {
  const { cwd, env, timeoutMs } = options;
  try {
    const running = run(program, args, { cwd, env, maxBuffer: MAX_OUTPUT_BYTES, timeout: timeoutMs ?? 0 });
    running.child.stdin?.end();
    await running;
    return null;
  } catch (cause) {
    const { code, killed, stderr } = cause as { code?: unknown; killed?: boolean; stderr?: string };
    const errorOutput = (stderr ?? '').trim().slice(-STDERR_CHARS);
    const timeout = killed === true ? `it was killed after ${timeoutMs} ms; ` : '';
    return {
      missing: code === 'ENOENT',
      reason: `${timeout}${errorOutput === '' ? String(cause) : errorOutput}`,
      cause,
    };
  }
}
