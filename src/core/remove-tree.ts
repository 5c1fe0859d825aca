import { chmod, lstat, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * Removes a directory and all below it, if it is there; also what its owner may not write, as Go leaves its module cache.
 * To be called when nothing writes to it any more. Rejects as `fs.rm` does.
 */
export async function removeTree(path: string): Promise<void> {
  const remove = (): Promise<void> => rm(path, { recursive: true, force: true, maxRetries: 3 });
  try {
    await remove();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EACCES' && code !== 'EPERM') throw error;
    await openUp(path);
    await remove();
  }
}

/** Lets the owner of the directories remove what is in them. Links are not followed. */
async function openUp(path: string): Promise<void> {
  const waiting = [path];
  for (let dir = waiting.pop(); dir !== undefined; dir = waiting.pop()) {
    const { mode } = await lstat(dir);
    await chmod(dir, mode | 0o700);
    for (const entry of await readdir(dir, { withFileTypes: true })) {
      if (entry.isDirectory()) waiting.push(join(dir, entry.name));
    }
  }
}
