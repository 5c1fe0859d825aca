import { createHash, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, rename, rm, rmdir } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { FloeError, systemError } from '@floe-rl/core';
import { syncFolder } from '../generation/journal.ts';
import type { SetFile } from './manifest.ts';

/** A file that is being written. */
type OpenFile = {
  readonly handle: FileHandle;
  readonly hash: ReturnType<typeof createHash>;
  bytes: number;
  rows: number;
};

/**
 * The folder of a set while it is written. Until {@link commit}, it has a temporary name in the same parent folder, so a folder with the final
 * name is always complete. Errors of the disk become `setup_failed` with the path.
 */
export class SetFolder {
  private readonly target: string;
  private readonly dir: string;
  private readonly open = new Map<string, OpenFile>();
  private readonly done = new Map<string, SetFile>();

  private constructor(target: string, dir: string) {
    this.target = target;
    this.dir = dir;
  }

  /** Creates the folder under its temporary name. Throws `conflict` when a file or a folder that is not empty exists at the path. */
  static async create(path: string): Promise<SetFolder> {
    const target = resolve(path);
    await refuseExisting(target);
    const dir = join(dirname(target), `.${basename(target)}.${randomUUID()}.unfinished`);
    await onDisk(dir, () => mkdir(dir, { recursive: true }));
    return new SetFolder(target, dir);
  }

  /** Appends bytes to a file, which the first call creates. `rows` is the number of rows in the bytes. */
  async write(path: string, data: string | Uint8Array, rows: number): Promise<void> {
    const place = join(this.dir, path);
    await onDisk(place, async () => {
      const file = this.open.get(path) ?? (await this.create(path));
      const bytes = typeof data === 'string' ? Buffer.from(data) : data;
      await file.handle.appendFile(bytes);
      file.hash.update(bytes);
      file.bytes += bytes.length;
      file.rows += rows;
    });
  }

  private async create(path: string): Promise<OpenFile> {
    const place = join(this.dir, path);
    await mkdir(dirname(place), { recursive: true });
    const file = { handle: await open(place, 'wx'), hash: createHash('sha256'), bytes: 0, rows: 0 };
    this.open.set(path, file);
    return file;
  }

  /** Makes a file durable and closes it. */
  async close(path: string): Promise<void> {
    const file = this.open.get(path);
    if (file === undefined) return;
    const { handle, hash, bytes, rows } = file;
    await onDisk(join(this.dir, path), async () => {
      await handle.sync();
      await handle.close();
    });
    this.open.delete(path);
    this.done.set(path, { path, rows, bytes, sha256: hash.digest('hex') });
  }

  /** Gives a closed file another name. */
  async rename(from: string, to: string): Promise<void> {
    const file = this.done.get(from);
    if (file === undefined) throw new Error(`the set has no closed file ${from}`);
    await onDisk(join(this.dir, from), () => rename(join(this.dir, from), join(this.dir, to)));
    this.done.delete(from);
    this.done.set(to, { ...file, path: to });
  }

  /** Returns the closed files, in the order of their paths. */
  files(): SetFile[] {
    return [...this.done.values()].sort((a, b) => (a.path < b.path ? -1 : 1));
  }

  /** Gives the folder its final name. Nothing can be written afterwards. */
  async commit(): Promise<void> {
    for (const path of [...this.open.keys()]) await this.close(path);
    await onDisk(this.target, async () => {
      for (const folder of new Set(this.files().map(({ path }) => dirname(path))))
        await syncFolder(join(this.dir, folder));
      await syncFolder(this.dir);
      await refuseExisting(this.target);
      // On some systems, an empty folder at the final path would make the rename fail.
      await rmdir(this.target).catch(() => {});
      await rename(this.dir, this.target);
      await syncFolder(dirname(this.target));
    });
  }

  /** Removes everything that was not committed. */
  async discard(): Promise<void> {
    for (const { handle } of this.open.values()) await handle.close().catch(() => {});
    this.open.clear();
    await rm(this.dir, { recursive: true, force: true });
  }
}

async function refuseExisting(target: string): Promise<void> {
  if (!existsSync(target)) return;
  const names = await onDisk(target, () => readdir(target));
  if (names.length === 0) return;
  throw new FloeError('conflict', `${target} exists and has files; name another folder, or remove it`, {
    path: target,
  });
}

async function onDisk<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (thrown) {
    throw systemError(thrown, { path, verb: 'write to', remedy: 'no part of the set was kept' }) ?? thrown;
  }
}
