import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
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
