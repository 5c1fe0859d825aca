import { availableParallelism } from 'node:os';
import { configDefaults, defineConfig } from 'vitest/config';
import { SOURCE_ALIASES } from './tools/source-aliases.ts';
import { LongestFirst } from './tools/test-order.ts';

/** Files whose tests take minutes. `npm test -- --all` runs them, too. */
const LONG = process.env.FLOE_ALL_TESTS === '1' ? [] : ['**/*.long.test.ts'];
const INTEGRATION = ['packages/*/test/integration/**/*.test.ts', 'test/integration/**/*.test.ts'];

export default defineConfig({
  resolve: { alias: SOURCE_ALIASES },
  test: {
    pool: 'threads',
    isolate: false,
    sequence: { sequencer: LongestFirst },
    // Long enough for a machine with much other work; a test that hangs takes this time to fail.
    testTimeout: 120_000,
    hookTimeout: 120_000,
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['packages/*/test/**/*.test.ts', 'test/**/*.test.ts'],
          exclude: [...configDefaults.exclude, ...INTEGRATION, ...LONG],
          maxWorkers: Math.max(2, availableParallelism() - 1),
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: {
          // Tests that start sandboxes, containers, databases, browsers, and programs of floe or of others. Two files at once, because each of
          // them may use a whole machine.
          name: 'integration',
          include: INTEGRATION,
          exclude: [...configDefaults.exclude, ...LONG],
          maxWorkers: 2,
          sequence: { groupOrder: 0 },
        },
      },
    ],
  },
});
