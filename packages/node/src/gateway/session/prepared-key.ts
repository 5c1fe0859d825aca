import { createHash } from 'node:crypto';
import type { BigIntStats } from 'node:fs';
import { lstat, open, readdir, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { canonicalJson, MIB } from '@floe-rl/core';
import type { PrepareAction, RuntimeBackend, RuntimeSpec } from '@floe-rl/core/schema';
import { allowedSource } from '@floe-rl/sandbox';

/** Number of bytes of a file that are read at once. */
const PART_BYTES = MIB;
/** Maximum number of files whose hashes are remembered. */
const MAX_HASHES = 20_000;

/** Computes keys that are equal for sandboxes with the same preparation. A file that has not changed is read once. */
export class PreparedKeys {
  /** Hash of a file's content, by a key that changes when the file is changed. The hash that was used least recently is first. */
  private readonly hashes = new Map<string, string>();

  /**
   * Returns a text that is equal for two preparations only if they have the same runtime settings and actions, and upload the same files.
   * Files are the same if their names below the uploaded file or directory, their kinds, modes and contents are equal. Their place on this
   * machine and the time of their last change make no difference. Rejects when an upload is not allowed or cannot be read.
   */
  async of(
    backend: RuntimeBackend,
    spec: RuntimeSpec,
    actions: readonly PrepareAction[],
    uploadRoots: readonly string[],
  ): Promise<string> {
    const prepare = actions.map((action) => ('source' in action ? { ...action, source: null } : action));
    const hash = createHash('sha256').update(
      canonicalJson({ ...spec, backend, prepare, eval_prepare: null, eval_overrides: null }),
    );
    for (const action of actions) {
      if (!('source' in action)) continue;
      hash.update('\0');
      const source = await allowedSource(action.source, uploadRoots);
      for await (const line of this.describeTree(source, '')) hash.update(`${line}\n`);
    }
    return hash.digest('hex');
  }

  /** Yields a line for a file, or for a directory and each entry of its tree, in an order that depends only on the names. */
  private async *describeTree(root: string, below: string): AsyncGenerator<string> {
    const path = join(root, below);
    const info = await lstat(path, { bigint: true });
    const content = info.isSymbolicLink() ? await readlink(path) : info.isFile() ? await this.hashOf(path, info) : '';
    yield JSON.stringify([below, info.mode.toString(8), content]);
    if (!info.isDirectory()) return;
    for (const name of (await readdir(path)).sort()) yield* this.describeTree(root, join(below, name));
  }

  /** Returns the hash of a file's content. Reads the file only if it has changed since the last time. */
  private async hashOf(path: string, info: BigIntStats): Promise<string> {
    const key = versionOf(info);
    const known = this.hashes.get(key);
    const hash = known ?? (await hashFile(path));
    this.hashes.delete(key);
    // A file that was changed while it was read is read again the next time.
    if (known !== undefined || versionOf(await lstat(path, { bigint: true })) === key) this.hashes.set(key, hash);
    for (const oldest of this.hashes.keys()) {
      if (this.hashes.size <= MAX_HASHES) break;
      this.hashes.delete(oldest);
    }
    return hash;
  }
}

/** Returns a text that changes when the content of the file does. */
function versionOf({ dev, ino, size, mtimeNs, ctimeNs }: BigIntStats): string {
  return [dev, ino, size, mtimeNs, ctimeNs].join(' ');
}

async function hashFile(path: string): Promise<string> {
  const hash = createHash('sha256');
  const file = await open(path);
  try {
    for await (const part of file.createReadStream({ highWaterMark: PART_BYTES, autoClose: false })) hash.update(part);
    return hash.digest('hex');
  } finally {
    await file.close();
  }
}
