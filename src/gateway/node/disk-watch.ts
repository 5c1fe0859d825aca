import { rm, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import type { OpenAppendFile } from '../../proxy/journal/append-file.ts';
import { openAppendFile } from '../../proxy/journal/append-file.ts';

/** Less than this left is a full disk: a session's sandbox and record need some. */
const LEAST_FREE_BYTES = 16 * 1024 * 1024;
const PROBE = Buffer.alloc(4096);
const PROBE_NAME = 'disk-probe';

export type DiskWatchOptions = {
  /** For tests: how files are opened. */
  readonly openFile?: OpenAppendFile;
  /** For tests: bytes that are left for this process. */
  readonly freeBytes?: (dir: string) => Promise<number>;
};

/**
 * Whether the disk of a directory takes writes. A node whose disk does not must take no sessions: each would use up an attempt.
 * A disk that has refused a write counts as usable again when a write and its sync succeed.
 */
export class DiskWatch {
  private readonly dir: string;
  private readonly openFile: OpenAppendFile;
  private readonly freeBytes: (dir: string) => Promise<number>;
  private failed = false;

  constructor(dir: string, { openFile = openAppendFile, freeBytes = bytesLeft }: DiskWatchOptions = {}) {
    this.dir = dir;
    this.openFile = openFile;
    this.freeBytes = freeBytes;
  }

  /** Passes `writing` on, and remembers when it is refused. */
  async watch<T>(writing: Promise<T>): Promise<T> {
    try {
      return await writing;
    } catch (error) {
      this.failed = true;
      throw error;
    }
  }

  /** Why nothing can be written now; null: it can. Never rejects. */
  async problem(): Promise<string | null> {
    try {
      const free = await this.freeBytes(this.dir);
      if (free < LEAST_FREE_BYTES) {
        return `the disk of ${this.dir} is full: ${free} bytes are left, and a session needs ${LEAST_FREE_BYTES}`;
      }
      if (this.failed) await this.probe();
      this.failed = false;
      return null;
    } catch (error) {
      return `the disk of ${this.dir} refuses writes: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  private async probe(): Promise<void> {
    const path = join(this.dir, PROBE_NAME);
    // Of a probe that failed before it was removed.
    await rm(path, { force: true });
    const file = await this.openFile(path);
    try {
      await file.append(PROBE);
    } finally {
      await file.close();
      await rm(path, { force: true });
    }
  }
}

async function bytesLeft(dir: string): Promise<number> {
  const { bavail, bsize } = await statfs(dir);
  return bavail * bsize;
}
