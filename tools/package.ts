// `npm run package [-- --tag TAG]`: makes the npm packages, the Python wheel and the list of their contents in the folder `release/`, which it
// replaces. With the tag of a release, checks that the changelog and the manifest are ready for it, and writes its notes to `notes.md` there.

import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { makePackages, sizeOf } from './packages.ts';
import { releaseNotes } from './release-notes.ts';
import { repositoryRoot } from './repository.ts';

const ROOT = repositoryRoot();
const { values: options } = parseArgs({ options: { tag: { type: 'string' } } });
const folder = join(ROOT, 'release');

/** Returns the notes of the release. Throws an Error when a part of the release is missing. */
function checkedNotes(tag: string): string {
  const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    version: string;
    repository?: unknown;
  };
  if (manifest.repository === undefined) {
    throw new Error('package.json needs the field "repository": npm compares it with the repository that publishes');
  }
  return releaseNotes(readFileSync(join(ROOT, 'CHANGELOG.md'), 'utf8'), manifest.version, tag);
}

try {
  const notes = options.tag === undefined ? null : checkedNotes(options.tag);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder);
  makePackages(folder);
  if (notes !== null) writeFileSync(join(folder, 'notes.md'), `${notes}\n`);
  for (const name of readdirSync(folder))
    console.log(`${String(sizeOf(join(folder, name))).padStart(9)}  release/${name}`);
} catch (error) {
  console.error(`npm run package: ${(error as Error).message}`);
  process.exitCode = 1;
}
