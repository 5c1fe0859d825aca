import { createHash, randomBytes } from 'node:crypto';
import { mkdir, open, opendir, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, FloeError, messageOf, PRIVATE_DIR_MODE, PRIVATE_FILE_MODE } from '@floe-rl/core';
import type { BlobRef } from '../rows.ts';
import { type BlobStore, intactBlob } from './blob-store.ts';

/** Matches the name of a blob: its SHA-256 in hex. Only such names are used in file paths. */
const REF = /^[0-9a-f]{64}$/;

/** Age in milliseconds above which a temporary file is removed. Writes take seconds, so no running write uses a file of this age. */
const MAX_WRITE_AGE_MS = 3_600_000;

/**
 * Stores blobs as files `<root>/<first two digits>/<sha256>`. A file gets this name only when its bytes are on disk. They are written to a
 * temporary file, which is fsynced and then renamed. Finally the directory is fsynced.
 */
export class DirectoryBlobStore implements BlobStore {
  private readonly root: string;
  /** Directories that exist on disk and were fsynced, so that they need not be created again. */
  private readonly directories = new Set<string>();
  private readonly pending = new Map<string, Promise<BlobRef>>();
  private readonly clock: Clock;

  private constructor(root: string, clock: Clock) {
    this.root = root;
    this.clock = clock;
  }

  /**
   * Opens the blob store. Creates the directory if it is missing, and removes old temporary files that writes left when a process crashed.
   * Throws `store_unavailable` when the file system fails.
   */
  static async open(root: string, clock: Clock): Promise<DirectoryBlobStore> {
    const store = new DirectoryBlobStore(root, clock);
    await runOperation('open', () => store.prepare());
    return store;
  }

  async put(bytes: Buffer): Promise<BlobRef> {
    const ref = createHash('sha256').update(bytes).digest('hex');
    const running = this.pending.get(ref);
    if (running !== undefined) return running;
    const write = runOperation('write', () => this.write(ref, bytes)).finally(() => this.pending.delete(ref));
    this.pending.set(ref, write);
    return write;
  }

  async get(ref: string): Promise<Buffer> {
    if (!REF.test(ref)) throw new FloeError('internal', `${JSON.stringify(ref)} is not the name of a blob`);
    const bytes = await runOperation('read', () => this.readIfPresent(this.pathOf(ref)));
    return intactBlob(ref, bytes);
  }

  async *olderThan(beforeMs: number): AsyncGenerator<string> {
    for (let digits = 0; digits < 256; digits++) {
      const directory = join(this.root, digits.toString(16).padStart(2, '0'));
      const entries = await opendir(directory).catch(() => null);
      if (entries === null) continue;
      for await (const { name } of entries) {
        const info = REF.test(name) ? await stat(join(directory, name)).catch(() => null) : null;
        if (info !== null && info.mtimeMs < beforeMs) yield name;
      }
    }
  }

  async remove(ref: string, beforeMs: number): Promise<void> {
    if (!REF.test(ref)) throw new FloeError('internal', `${JSON.stringify(ref)} is not the name of a blob`);
    const path = this.pathOf(ref);
    await runOperation('remove', async () => {
      const info = await stat(path).catch(() => null);
      if (info !== null && info.mtimeMs < beforeMs) await rm(path, { force: true });
    });
  }

  async close(): Promise<void> {
    await Promise.allSettled(this.pending.values());
  }

  /**
   * Restarts the age of a blob, so that it is not removed before a row refers to it. Resolves to `false` when the blob no longer exists.
   */
  private async touch(path: string): Promise<boolean> {
    const now = this.clock.nowMs() / 1000;
    return utimes(path, now, now).then(
      () => true,
      () => false,
    );
  }

  /** Resolves to the bytes of a file; `null` when it is missing from a directory of blobs that exists. */
  private async readIfPresent(path: string): Promise<Buffer | null> {
    try {
      return await readFile(path);
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code !== 'ENOENT') throw thrown;
      // `stat` throws when the whole directory is missing, for example because its file system is not mounted. The blob is then not reported
      // as lost.
      await stat(this.root);
      return null;
    }
  }

  private pathOf(ref: string): string {
    return join(this.root, ref.slice(0, 2), ref);
  }

  private async prepare(): Promise<void> {
    await mkdir(join(this.root, 'tmp'), { recursive: true, mode: PRIVATE_DIR_MODE });
    await syncDirectory(this.root);
    for (const name of await readdir(join(this.root, 'tmp'))) {
      const path = join(this.root, 'tmp', name);
      const info = await stat(path).catch(() => null);
      if (info !== null && info.mtimeMs < this.clock.nowMs() - MAX_WRITE_AGE_MS) await rm(path, { force: true });
    }
  }

  private async write(ref: string, bytes: Buffer): Promise<BlobRef> {
    const directory = join(this.root, ref.slice(0, 2));
    const path = this.pathOf(ref);
    const known = await stat(path).catch(() => null);
    // An existing file of the same size is not rewritten. Its name is the hash of the bytes, and an incomplete file never gets this name.
    if (known?.size === bytes.length && (await this.touch(path))) {
      // The directory is synced even if the file exists, because the process that wrote the file may have died before the file's name was
      // durable.
      await syncDirectory(directory);
      return { ref, bytes: bytes.length };
    }
    await this.ensureDirectory(directory);
    const temporary = join(this.root, 'tmp', `${ref}.${randomBytes(6).toString('hex')}`);
    try {
      const file = await open(temporary, 'wx', PRIVATE_FILE_MODE);
      try {
        await file.writeFile(bytes);
        await file.sync();
      } finally {
        await file.close();
      }
      await rename(temporary, path);
    } catch (thrown) {
      await rm(temporary, { force: true });
      throw thrown;
    }
    await syncDirectory(directory);
    return { ref, bytes: bytes.length };
  }

  private async ensureDirectory(directory: string): Promise<void> {
    if (this.directories.has(directory)) return;
    await mkdir(directory, { recursive: true, mode: PRIVATE_DIR_MODE });
    await syncDirectory(this.root);
    this.directories.add(directory);
  }
}

async function syncDirectory(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Runs `work` and converts errors of the file system to `store_unavailable`. */
async function runOperation<T>(what: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (cause) {
    if (FloeError.is(cause)) throw cause;
    const reason = messageOf(cause);
    throw new FloeError('store_unavailable', `the blob directory cannot ${what}: ${reason}`, {}, cause);
  }
}
