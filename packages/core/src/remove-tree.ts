import { chmod, lstat, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * Removes a directory and everything below it, including directories that their owner may not write to, such as Go's module cache. Does
 * nothing when the directory does not exist. It must be called only when no process writes to the directory any more. Rejects with the
 * errors of `fs.rm`.
 */
export async function removeTree(path: string): Promise<void> {
  const remove = (): Promise<void> => rm(path, { recursive: true, force: true, maxRetries: 3 });
  try {
    await remove();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EACCES' && code !== 'EPERM') throw error;
    await makeWritable(path);
    await remove();
  }
}

/** Gives the owner of every directory in the tree the right to remove its entries. Symbolic links are not followed. */
async function makeWritable(path: string): Promise<void> {
  const pending = [path];
  for (let dir = pending.pop(); dir !== undefined; dir = pending.pop()) {
    const { mode } = await lstat(dir);
    await chmod(dir, mode | 0o700);
    for (const entry of await readdir(dir, { withFileTypes: true })) {
      if (entry.isDirectory()) pending.push(join(dir, entry.name));
    }
  }
}
