// @ts-check
// Bundles each program that runs as a process of its own into one file of dist/programs/, after the package was compiled. `src/programs.ts`
// describes the programs.
import { rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'rolldown';

const ROOT = dirname(fileURLToPath(import.meta.url));
/** @type {Readonly<Record<import('./src/programs.ts').ProgramName, string>>} */
const SOURCES = {
  'box-server': 'box/server.js',
  'mcp-server': 'box/mcp-server.js',
  browser: 'box/browser/program.js',
  'proxy-relay': 'backends/bubblewrap/proxy-relay.js',
  'spawn-helper': 'spawn/spawn-helper.js',
};

const output = join(ROOT, 'dist', 'programs');
rmSync(output, { recursive: true, force: true });
for (const [name, source] of Object.entries(SOURCES)) {
  await build({
    input: join(ROOT, 'dist', source),
    platform: 'node',
    logLevel: 'warn',
    output: { file: join(output, `${name}.js`), format: 'esm', codeSplitting: false },
  });
}
