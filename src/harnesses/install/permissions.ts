import { chmod, lstat, readdir } from 'node:fs/promises';
import { join } from 'node:path';

const READ = 0o444;
const EXECUTE = 0o111;
const OWNER_EXECUTES = 0o100;
const OTHERS_WRITE = 0o022;
const PERMISSIONS = 0o777;

/**
 * Lets every user read a directory and all below it, and run what its owner may run, whatever the umask of the installing
 * user is: sandboxes run as other users, and there is nothing secret in an installation.
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
  const wanted = (mode | READ | execute) & ~OTHERS_WRITE;
  if (wanted !== mode) await chmod(path, wanted);
}
