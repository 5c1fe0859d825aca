import { tarEntries } from '#floe/commands/tar-entries';
import { ARCHIVES } from './archives.ts';
import type { Case } from './case.ts';

/** Length in bytes of the parts in which an archive is read. */
const PART_BYTES = 777;

/** Returns a case for each archive, which the program that lists artifacts reads. */
export function archiveCases(): Case[] {
  return ARCHIVES.map(({ name, make }) => ({
    backend: 'the list of artifacts',
    name: `listing an archive with ${name}`,
    async run() {
      const names: string[] = [];
      for await (const entry of tarEntries(parts(make()))) names.push(entry.name.slice(0, 100));
      return { bytes: Buffer.from(names.join('\n')), wrong: [] };
    },
  }));
}

async function* parts(archive: Buffer): AsyncGenerator<Buffer> {
  for (let at = 0; at < archive.length; at += PART_BYTES) yield archive.subarray(at, at + PART_BYTES);
}
