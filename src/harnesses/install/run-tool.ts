import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** npm and pip report every package that they warn about. */
const OUTPUT_BYTES = 16 * 1024 * 1024;
/** Enough of the error output to see what went wrong. */
const STDERR_CHARS = 1_000;

export type ToolOptions = {
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  /** The tool is ended when it takes longer. */
  readonly timeoutMs?: number;
};

export type ToolFailure = {
  /** The program is not there at all. */
  readonly missing: boolean;
  /** The end of its error output. */
  readonly why: string;
  readonly cause: unknown;
};

/** Runs a program with nothing on its stdin; null when it ended well. */
export async function runTool(
  [program = '', ...args]: readonly string[],
  options: ToolOptions,
): Promise<ToolFailure | null> {
  const { cwd, env, timeoutMs } = options;
  try {
    const running = run(program, args, { cwd, env, maxBuffer: OUTPUT_BYTES, timeout: timeoutMs ?? 0 });
    running.child.stdin?.end();
    await running;
    return null;
  } catch (cause) {
    const { code, killed, stderr } = cause as { code?: unknown; killed?: boolean; stderr?: string };
    const said = (stderr ?? '').trim().slice(-STDERR_CHARS);
    const late = killed === true ? `it was ended after ${timeoutMs} ms; ` : '';
    return { missing: code === 'ENOENT', why: `${late}${said === '' ? String(cause) : said}`, cause };
  }
}
