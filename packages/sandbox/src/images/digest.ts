import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { lstat, readdir, readlink } from 'node:fs/promises';
import { join } from 'node:path';

/**
 * Resolves with the SHA-256 of a file or directory in hexadecimal digits. It covers the names, types and permissions of everything in a
 * directory, the contents of files and the targets of links. It does not cover times and owners. Rejects with the errors of `node:fs`.
 */
export async function digestOfTree(path: string): Promise<string> {
  const hash = createHash('sha256');
  const add = async (at: string, name: string): Promise<void> => {
    const info = await lstat(at);
    const permissions = (info.mode & 0o7777).toString(8);
    if (info.isDirectory()) {
      hash.update(`${JSON.stringify(['directory', name, permissions])}\n`);
      for (const entry of (await readdir(at)).sort()) await add(join(at, entry), join(name, entry));
    } else if (info.isSymbolicLink()) hash.update(`${JSON.stringify(['link', name, await readlink(at)])}\n`);
    else if (info.isFile()) hash.update(`${JSON.stringify(['file', name, permissions, await digestOfFile(at)])}\n`);
  };
  await add(path, '.');
  return hash.digest('hex');
}

async function digestOfFile(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer);
  return hash.digest('hex');
}
