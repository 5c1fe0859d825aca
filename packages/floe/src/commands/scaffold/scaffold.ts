import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { assetPath, FloeError, parseAs } from '@floe-rl/core';
import { idSchema } from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { printLine } from '../print.ts';
import { AGENT_FILES } from './agent.ts';
import { ENVIRONMENT_FILES } from './environment.ts';
import { EVALUATOR_FILES } from './evaluator.ts';
import { installedFrom } from './installed-from.ts';
import { TOOL_FILES } from './tool.ts';

const FILES = {
  environment: ENVIRONMENT_FILES,
  agent: AGENT_FILES,
  tool: TOOL_FILES,
  evaluator: EVALUATOR_FILES,
} as const;

type Kind = keyof typeof FILES;

/** Version of zod in the new package. Its schemas must be of the version that floe reads. */
const ZOD = '^4.0.0';

/** Adds the command `init <name>`, which makes a folder with a new plug-in of this kind, a test of it, and a task that uses it. */
export function registerInit(parent: Command, kind: Kind): void {
  parent
    .command('init <name>')
    .description(`make a folder with a new ${kind}, a test of it, and a task that uses it`)
    .option('--dir <dir>', 'folder to make (default: the name)')
    .action((name: string, { dir = name }: { dir?: string }) => makeFolder(kind, name, dir));
}

/** Makes the folder. Rejects with `schema_violation` for a name that tasks cannot use, and with `conflict` when there is something. */
async function makeFolder(kind: Kind, name: string, dir: string): Promise<void> {
  parseAs(idSchema, name, 'the name');
  try {
    await mkdir(dir);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    throw new FloeError('conflict', `there is already something at ${dir}; choose another --dir`);
  }
  const files = { ...FILES[kind], 'package.json': packageText(name) };
  for (const [path, text] of Object.entries(files)) {
    await writeFile(join(dir, path), text.replaceAll('{{name}}', name));
  }
  printLine(`${dir}: ${Object.keys(files).join(', ')}`);
  printLine(`Test it with: cd ${dir} && npm install && npm test`);
}

function packageText(name: string): string {
  const manifest = {
    name,
    private: true,
    type: 'module',
    scripts: { test: 'node --test' },
    dependencies: { floe: installedFrom(dirname(assetPath(import.meta.url, 'package.json'))), zod: ZOD },
  };
  return `${JSON.stringify(manifest, null, 2)}\n`;
}
