import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { packageRoot } from '../src/core/package-root.ts';

/** Path of vitest's program, for callers that need its output. */
export function vitestProgram(root: string = packageRoot()): string {
  return join(root, 'node_modules', 'vitest', 'vitest.mjs');
}

/** Runs vitest in the repository root with its output shown and `reporter` (a path from the root); returns its exit status. */
export function runVitest(args: readonly string[], reporter = './tools/summary-reporter.ts'): number {
  const vitest = spawnSync(process.execPath, [vitestProgram(), 'run', `--reporter=${reporter}`, ...args], {
    cwd: packageRoot(),
    stdio: 'inherit',
  });
  return vitest.status ?? 1;
}

export type TestCounts = { readonly passed: number; readonly failed: number };

/**
 * Runs vitest as {@link runVitest} does, but leaves its closing line out of the output and returns the counts. A run that ends without
 * the line, or with an error after it, has at least one failure.
 */
export async function countTests(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<TestCounts> {
  const child = spawn(process.execPath, [vitestProgram(), 'run', '--reporter=./tools/summary-reporter.ts', ...args], {
    cwd: packageRoot(),
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(child, 'close');
  let closing: RegExpExecArray | null = null;
  for await (const line of createInterface({ input: child.stdout })) {
    closing = /^(\d+) passed, (\d+) failed$/.exec(line);
    if (closing === null) console.log(line);
  }
  const [status] = await ended;
  const [, passed = '0', failed = '1'] = closing ?? [];
  return { passed: Number(passed), failed: status === 0 ? Number(failed) : Math.max(1, Number(failed)) };
}
