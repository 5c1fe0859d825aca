// The part of the host that no transfer may read or change.
import { createHash, randomBytes } from 'node:crypto';
import { chmod, lstat, mkdir, readdir, readFile, readlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Size of the secret file in bytes. Its content is one text that is repeated, so that each part of it is found. */
const REPEATS = 64;

/** A directory on the host with a secret file. */
export class Guard {
  readonly canaryPath: string;
  readonly outside: string;
  private readonly dir: string;
  private readonly secret = `floe-transfer-secret-${randomBytes(12).toString('hex')}`;
  private before = '';

  private constructor(dir: string) {
    this.dir = dir;
    this.canaryPath = join(dir, 'canary');
    this.outside = join(dir, 'outside');
  }

  /** Creates the directory. Its secret is also in the environment of this process. */
  static async create(dir: string): Promise<Guard> {
    const guard = new Guard(dir);
    await mkdir(guard.outside, { recursive: true });
    await writeFile(guard.canaryPath, `${guard.secret}\n`.repeat(REPEATS));
    await writeFile(join(guard.outside, 'file'), 'outside');
    for (const path of [dir, guard.outside]) await chmod(path, 0o777);
    process.env.FLOE_TRANSFER_SECRET = guard.secret;
    guard.before = await digestOf(dir);
    return guard;
  }

  /** Returns whether the secret is in the bytes. */
  isIn(bytes: Buffer | string): boolean {
    return bytes.includes(this.secret);
  }

  async hasChanged(): Promise<boolean> {
    return (await digestOf(this.dir)) !== this.before;
  }
}

/** Returns a digest of the names, kinds, modes and contents of everything below a directory. */
async function digestOf(dir: string): Promise<string> {
  const hash = createHash('sha256');
  for (const name of (await readdir(dir, { recursive: true })).sort()) {
    const path = join(dir, name);
    const info = await lstat(path);
    const content = info.isFile() ? await readFile(path) : info.isSymbolicLink() ? await readlink(path) : '';
    hash.update(`${name}\0${info.mode}\0${info.uid}\0${info.nlink}\0`).update(content);
  }
  return hash.digest('hex');
}
