import { writeFile } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { FloeError } from '@floe-rl/core';
import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { printable, printJson, printLine, printNote } from './print.ts';
import { type TarEntry, tarEntries } from './tar-entries.ts';

type Options = ConnectionOptions & { output?: string; list?: boolean };

export function registerArtifacts(program: Command): void {
  withConnectionOptions(
    program
      .command('artifacts <session>')
      .description('download the files that the agent of a finished session left, as a .tar.gz archive')
      .option('-o, --output <file>', 'file to write, or - for standard output (default: <session>.tar.gz)')
      .option('--list', 'list the entries of the archive instead; with --json one object per line'),
  ).action(async (id: string, options: Options) => {
    await withClient(options, async (client) => {
      const archive = await client.artifacts(id);
      if (options.list) await list(archive, options.json === true);
      else await save(archive, options.output ?? `${id}.tar.gz`, options.json === true);
    });
  });
}

async function save(archive: Buffer, file: string, asJson: boolean): Promise<void> {
  if (file === '-') {
    await new Promise<void>((resolve, reject) =>
      process.stdout.write(archive, (error) => (error ? reject(error) : resolve())),
    );
    return;
  }
  try {
    await writeFile(file, archive);
  } catch (thrown) {
    throw new FloeError('setup_failed', `${file} cannot be written: ${(thrown as Error).message}`, { file }, thrown);
  }
  if (asJson) printJson({ file, bytes: archive.length });
  else printNote(`Wrote ${archive.length} bytes to ${file}.`);
}

async function list(archive: Buffer, asJson: boolean): Promise<void> {
  const unpacked = Readable.from([archive]).pipe(createGunzip());
  try {
    for await (const entry of tarEntries(unpacked)) {
      if (asJson) printJson(entry);
      else printLine(formatEntry(entry));
    }
  } catch (thrown) {
    if (FloeError.is(thrown)) throw thrown;
    throw new FloeError('corrupt_record', `the archive cannot be read: ${(thrown as Error).message}`, {}, thrown);
  }
}

function formatEntry({ name, kind, target }: TarEntry): string {
  const shown = printable(name);
  if (target !== null) return `${shown} -> ${printable(target)}`;
  return kind === 'folder' && !shown.endsWith('/') ? `${shown}/` : shown;
}
