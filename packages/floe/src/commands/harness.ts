import { FloeError } from '@floe-rl/core';
import { harnessInstalls, harnessRegistry, harnessStatus, installedBytes, installHarness } from '@floe-rl/node';
import type { Command } from 'commander';
import { harnessDir } from './home.ts';
import { interruptible } from './lifetime.ts';
import { formatTable, printJson, printLine, printNote } from './print.ts';

const BYTES_PER_MB = 1_000_000;

export function registerHarness(program: Command): void {
  const harness = program
    .command('harness')
    .description('list and install the agent programs that this machine can run');
  harness
    .command('list')
    .description('list the harnesses with their pinned versions, and whether they are installed')
    .option('--json', 'print JSON')
    .action(list);
  harness
    .command('install [names...]')
    .description('install harnesses in their pinned versions, with everything that they need to run')
    .option('--all', 'install every harness')
    .action(install);
}

async function list(options: { json?: boolean }): Promise<void> {
  const adapters = harnessRegistry();
  const installs = harnessInstalls();
  const names = [...new Set([...adapters.keys(), ...installs.keys()])].sort();
  const rows = await Promise.all(
    names.map(async (name) => {
      const { installed, path } = await harnessStatus(name, harnessDir());
      const version = installs.get(name)?.version ?? null;
      const bytes = path === null ? null : await installedBytes(path);
      return { harness: name, version, dialects: adapters.get(name)?.dialects ?? [], installed, path, bytes };
    }),
  );
  if (options.json) return printJson(rows);
  printLine(
    formatTable(
      ['harness', 'version', 'dialects', 'MB', 'installed'],
      rows.map(({ harness, version, dialects, installed, path, bytes }) => [
        harness,
        version ?? '',
        dialects.join(' '),
        bytes === null ? null : Math.round(bytes / BYTES_PER_MB),
        installed ? (path ?? 'nothing to install') : 'no',
      ]),
    ),
  );
}

/** Installs the harnesses one after the other, because all downloads share the network and the disk. Stops at the first failure. */
async function install(names: readonly string[], { all = false }: { all?: boolean }): Promise<void> {
  if (all === names.length > 0) {
    throw new FloeError('bad_request', 'give either the names of harnesses to install, or --all');
  }
  const cacheDir = harnessDir();
  const selected = all ? [...harnessInstalls().keys()] : names;
  // Rejects an unknown name of a harness before the first download.
  for (const name of selected) await harnessStatus(name, cacheDir);
  const done = await interruptible(async (signal) => {
    for (const name of selected) {
      const path = await installHarness(name, { cacheDir, log: printNote, signal });
      printLine(path ?? `${name} needs no installation.`);
    }
    return true;
  });
  if (done === null) printNote('Interrupted. Run the command again to install the rest.');
}
