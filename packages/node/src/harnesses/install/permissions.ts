import { chmod, lstat, readdir } from 'node:fs/promises';
import { join } from 'node:path';

const READ = 0o444;
const EXECUTE = 0o111;
const OWNER_EXECUTES = 0o100;
const GROUP_AND_OTHERS_WRITE = 0o022;
const PERMISSIONS = 0o777;

/**
 * Lets every user read a directory and everything in it, and run the files that their owner may run. The result does not depend on the
 * umask of the installing user. This is needed because sandboxes run as other users; an installation contains no secrets.
 */
export async function makeReadable(dir: string): Promise<void> {
  await allow(dir);
  for (const entry of await readdir(dir, { withFileTypes: true })) {
    const path = join(dir, entry.name);
    if (entry.isDirectory()) await makeReadable(path);
    else if (entry.isFile()) await allow(path);
  }
}

async function allow(path: string): Promise<void> {
  const mode = (await lstat(path)).mode & PERMISSIONS;
  const execute = (mode & OWNER_EXECUTES) === 0 ? 0 : EXECUTE;
  const newMode = (mode | READ | execute) & ~GROUP_AND_OTHERS_WRITE;
  if (newMode !== mode) await chmod(path, newMode);
}
