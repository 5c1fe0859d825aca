import { defineConfig } from 'vite';

/** Builds the page into `dist/dashboard` of the package server. All addresses are relative, so that it works below any path. */
export default defineConfig({
  base: './',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: '../packages/server/dist/dashboard',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
});
