import { createHash } from 'node:crypto';
import { lstat, readdir, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { canonicalJson } from '../../core/canonical-json.ts';
import { allowedSource } from '../../runtimes/prepare.ts';
import type { PrepareAction, RuntimeBackend, RuntimeSpec } from '../../schema/index.ts';

/**
 * Returns a text that is equal for two preparations only if they have the same runtime settings, actions and uploaded files. Files are
 * compared by path, kind, mode, inode, size and times of the last changes, so they are not read. Rejects when an upload is not allowed or
 * cannot be read.
 */
export async function preparedKey(
  backend: RuntimeBackend,
  spec: RuntimeSpec,
  actions: readonly PrepareAction[],
  uploadRoots: readonly string[],
): Promise<string> {
  const hash = createHash('sha256');
  hash.update(canonicalJson({ ...spec, backend, prepare: actions, eval_prepare: null }));
  for (const action of actions) {
    if (action.type !== 'upload_file' && action.type !== 'upload_dir') continue;
    hash.update('\0');
    for await (const line of describeTree(await allowedSource(action.source, uploadRoots))) hash.update(`${line}\n`);
  }
  return hash.digest('hex');
}

/** Yields a line for a file or for each entry of a directory tree, in an order that depends only on the names. */
async function* describeTree(path: string): AsyncGenerator<string> {
  const info = await lstat(path, { bigint: true });
  const target = info.isSymbolicLink() ? await readlink(path) : '';
  const { dev, ino, mode, size, mtimeNs, ctimeNs } = info;
  yield JSON.stringify([path, target, ...[dev, ino, mode, size, mtimeNs, ctimeNs].map(String)]);
  if (!info.isDirectory()) return;
  for (const name of (await readdir(path)).sort()) yield* describeTree(join(path, name));
}
