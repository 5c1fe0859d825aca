import { defineConfig } from 'vitest/config';

/** For `vitest run` in the repository root. */
export default defineConfig({
  test: {
    include: ['verify/conformance/*.test.ts'],
    setupFiles: ['verify/conformance/loopback.ts'],
    pool: 'threads',
    isolate: false,
    // SDKs wait for seconds between two attempts.
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
