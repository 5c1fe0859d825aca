import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { repositoryRoot } from './repository.ts';

/** Returns the path of vitest's main program, for callers that start it themselves to capture its output. */
export function vitestProgram(root: string = repositoryRoot()): string {
  return join(root, 'node_modules', 'vitest', 'vitest.mjs');
}

/** Runs vitest in the repository root and shows its output. `reporter` is a path relative to the root. Returns vitest's exit status. */
export function runVitest(args: readonly string[], reporter = './tools/summary-reporter.ts'): number {
  const vitest = spawnSync(process.execPath, [vitestProgram(), 'run', `--reporter=${reporter}`, ...args], {
    cwd: repositoryRoot(),
    stdio: 'inherit',
  });
  return vitest.status ?? 1;
}

export type TestCounts = { readonly passed: number; readonly failed: number };

/**
 * Runs vitest as {@link runVitest} does. Removes vitest's last line "N passed, N failed" from the output and returns the numbers in it.
 * When that line is missing, or the exit status is not 0, at least one failure is counted. `print` gets each line of the output.
 */
export async function countTests(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
  print: (line: string) => void = console.log,
): Promise<TestCounts> {
  const child = spawn(process.execPath, [vitestProgram(), 'run', '--reporter=./tools/summary-reporter.ts', ...args], {
    cwd: repositoryRoot(),
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(child, 'close');
  let closing: RegExpExecArray | null = null;
  for await (const line of createInterface({ input: child.stdout })) {
    closing = /^(\d+) passed, (\d+) failed$/.exec(line);
    if (closing === null) print(line);
  }
  const [status] = await ended;
  const [, passed = '0', failed = '1'] = closing ?? [];
  return { passed: Number(passed), failed: status === 0 ? Number(failed) : Math.max(1, Number(failed)) };
}
