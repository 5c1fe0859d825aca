import type { Command } from 'commander';
import { harnessStatus, installHarness } from '../harnesses/install.ts';
import { harnessRegistry } from '../harnesses/registry.ts';
import { harnessDir } from './home.ts';
import { json, line, note, table } from './print.ts';

export function registerHarness(program: Command): void {
  const harness = program.command('harness').description('the agent programs that this machine can run');
  harness
    .command('list')
    .description('adapters, their pinned versions, and whether they are installed')
    .option('--json', 'machine-readable output')
    .action(async (options: { json?: boolean }) => {
      const rows = [];
      for (const adapter of harnessRegistry().values()) {
        const status = await harnessStatus(adapter.name, harnessDir());
        rows.push({
          harness: adapter.name,
          version: adapter.install?.version ?? null,
          dialects: adapter.dialects,
          installed: status.installed,
          path: status.path,
        });
      }
      if (options.json) return json(rows);
      line(
        table(
          ['harness', 'version', 'dialects', 'installed'],
          rows.map((row) => [
            row.harness,
            row.version ?? '',
            row.dialects.join(' '),
            row.installed ? (row.path ?? 'nothing to install') : 'no',
          ]),
        ),
      );
    });
  harness
    .command('install <name>')
    .description('install a harness in its pinned version, with the Node that it needs')
    .action(async (name: string) => {
      const path = await installHarness(name, { cacheDir: harnessDir(), log: note });
      line(path ?? `${name} needs no installation`);
    });
}
