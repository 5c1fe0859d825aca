import { defineConfig } from 'vitest/config';
import { SOURCE_ALIASES } from '../../tools/source-aliases.ts';

export default defineConfig({
  resolve: { alias: SOURCE_ALIASES },
  test: {
    include: ['packages/capture/test/engines/real-engines.ts'],
    pool: 'threads',
    isolate: false,
    testTimeout: 1_200_000,
    hookTimeout: 1_200_000,
  },
});
