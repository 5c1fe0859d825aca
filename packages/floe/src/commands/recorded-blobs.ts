import { type FileHandle, open } from 'node:fs/promises';
import { PRIVATE_FILE_MODE, systemError } from '@floe-rl/core';
import type { BlobRef, BlobStore } from '@floe-rl/server';

/**
 * Blobs in one file that lasts as long as its process. Unlike the blobs of a server they need not survive a crash, so that thousands of sessions
 * are read in seconds.
 */
export class RecordedBlobs implements BlobStore {
  private readonly file: FileHandle;
  private end = 0;

  private constructor(file: FileHandle) {
    this.file = file;
  }

  static async create(path: string): Promise<RecordedBlobs> {
    return new RecordedBlobs(await open(path, 'wx+', PRIVATE_FILE_MODE));
  }

  async put(bytes: Buffer): Promise<BlobRef> {
    const start = this.end;
    this.end += bytes.length;
    try {
      await this.file.write(bytes, 0, bytes.length, start);
    } catch (thrown) {
      throw systemError(thrown, { remedy: 'name another directory with $TMPDIR' }) ?? thrown;
    }
    return { ref: `${start}-${bytes.length}`, bytes: bytes.length };
  }

  async get(ref: string): Promise<Buffer> {
    const [start = 0, length = 0] = ref.split('-').map(Number);
    const bytes = Buffer.alloc(length);
    await this.file.read(bytes, 0, length, start);
    return bytes;
  }

  async *olderThan(): AsyncIterable<string> {}

  async remove(): Promise<void> {}

  async close(): Promise<void> {
    await this.file.close();
  }
}
