import { defineConfig } from 'vitest/config';
import { SOURCE_ALIASES } from '../../tools/source-aliases.ts';
import { NearestFirst } from './nearest-first.ts';
import { LEFT_OUT_VARIABLE, TESTS_VARIABLE } from './tests.ts';

/** Returns the list in an environment variable, which the program sets before it starts Stryker. */
function listIn(variable: string): string[] {
  return JSON.parse(process.env[variable] ?? '[]');
}

/** Configuration of vitest for the runs that Stryker starts, in its copy of the repository. */
export default defineConfig({
  resolve: { alias: SOURCE_ALIASES },
  test: {
    include: listIn(TESTS_VARIABLE),
    exclude: listIn(LEFT_OUT_VARIABLE),
    pool: 'threads',
    isolate: false,
    sequence: { sequencer: NearestFirst },
    // A failed test is repeated. A mutant must not count as detected when a test fails only because the machine is busy.
    retry: 1,
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
