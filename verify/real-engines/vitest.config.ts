import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['packages/capture/test/engines/real-engines.ts'],
    pool: 'threads',
    isolate: false,
    testTimeout: 1_200_000,
    hookTimeout: 1_200_000,
  },
});
