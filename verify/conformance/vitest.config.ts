import { defineConfig } from 'vitest/config';
import { SOURCE_ALIASES } from '../../tools/source-aliases.ts';

/** Configuration of vitest for the conformance suite, which is run from the repository root. */
export default defineConfig({
  resolve: { alias: SOURCE_ALIASES },
  test: {
    include: ['verify/conformance/*.test.ts'],
    setupFiles: ['verify/conformance/loopback.ts'],
    pool: 'threads',
    isolate: false,
    // The time limits are long, because some SDKs wait for seconds before they retry a request.
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
