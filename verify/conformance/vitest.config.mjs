import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

export default defineConfig({
  root: dirname(dirname(fileURLToPath(import.meta.url))),
  test: {
    include: ['conformance/*.test.mjs'],
    setupFiles: ['conformance/loopback.mjs'],
    pool: 'threads',
    isolate: false,
    // SDKs wait for seconds between two tries.
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
