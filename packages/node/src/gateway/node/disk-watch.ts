import { rm, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { type OpenAppendFile, openAppendFile } from '@floe-rl/capture';
import { MIB, messageOf } from '@floe-rl/core';

/** Number of free bytes below which a disk counts as full. Each session needs disk space for its sandbox and its records. */
const MIN_FREE_BYTES = 16 * MIB;
const PROBE = Buffer.alloc(4096);
const PROBE_NAME = 'disk-probe';

type DiskWatchOptions = {
  /** Opens the file for a test write. Only tests replace this function. */
  readonly openFile?: OpenAppendFile;
  /** Returns how many bytes this process may still write to the directory's disk. Only tests replace this function. */
  readonly freeBytes?: (dir: string) => Promise<number>;
};

/**
 * Tracks whether the disk of a directory accepts writes. A node with a disk that refuses writes must not lease sessions, because each
 * session would fail and use up an attempt. After a failed write, the disk counts as usable again once a test write and its sync have
 * succeeded.
 */
export class DiskWatch {
  private readonly dir: string;
  private readonly openFile: OpenAppendFile;
  private readonly freeBytes: (dir: string) => Promise<number>;
  private failed = false;

  constructor(dir: string, { openFile = openAppendFile, freeBytes = availableBytes }: DiskWatchOptions = {}) {
    this.dir = dir;
    this.openFile = openFile;
    this.freeBytes = freeBytes;
  }

  /**
   * Waits for `write` and settles as it does. When `write` rejects, the disk counts as failed until {@link problem} has tested it
   * successfully.
   */
  async watch<T>(write: Promise<T>): Promise<T> {
    try {
      return await write;
    } catch (error) {
      this.failed = true;
      throw error;
    }
  }

  /** Returns the reason why the disk accepts no writes now; `null` when it accepts them. Never rejects. */
  async problem(): Promise<string | null> {
    try {
      const free = await this.freeBytes(this.dir);
      if (free < MIN_FREE_BYTES) {
        return `the disk of ${this.dir} is full: ${free} bytes are free, and a session needs ${MIN_FREE_BYTES}`;
      }
      if (this.failed) await this.probe();
      this.failed = false;
      return null;
    } catch (error) {
      return `the disk of ${this.dir} refuses writes: ${messageOf(error)}`;
    }
  }

  private async probe(): Promise<void> {
    const path = join(this.dir, PROBE_NAME);
    // Removes the test file of an earlier check, which may have failed before it removed the file.
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

async function availableBytes(dir: string): Promise<number> {
  const { bavail, bsize } = await statfs(dir);
  return bavail * bsize;
}
