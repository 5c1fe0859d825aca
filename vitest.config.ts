import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import { SOURCE_ALIASES } from './tools/source-aliases.ts';

export default defineConfig({
  resolve: { alias: SOURCE_ALIASES },
  test: {
    include: ['packages/*/test/**/*.test.ts', 'test/**/*.test.ts'],
    pool: 'threads',
    isolate: false,
    // Half of the tests wait for processes most of the time; the usual number, one less than the cores, would be 1 on a small machine.
    maxWorkers: Math.max(2, availableParallelism() - 1),
    // Long enough for a machine with much other work; a test that hangs takes this time to fail.
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
