import { rm, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { MIB } from '../../core/bytes.ts';
import { type OpenAppendFile, openAppendFile } from '../../proxy/journal/append-file.ts';

/** A disk with less free space counts as full, since a session needs some for its sandbox and record. */
const MIN_FREE_BYTES = 16 * MIB;
const PROBE = Buffer.alloc(4096);
const PROBE_NAME = 'disk-probe';

type DiskWatchOptions = {
  /** For tests: how files are opened. */
  readonly openFile?: OpenAppendFile;
  /** For tests: free bytes for this process. */
  readonly freeBytes?: (dir: string) => Promise<number>;
};

/**
 * Tracks whether the disk of a directory accepts writes. A node whose disk does not must lease no sessions, since each would use up an
 * attempt. After a failed write the disk counts as usable once a test write and its sync have succeeded.
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

  /** Settles as `write` and records its failure. */
  async watch<T>(write: Promise<T>): Promise<T> {
    try {
      return await write;
    } catch (error) {
      this.failed = true;
      throw error;
    }
  }

  /** Why the disk accepts no writes now; `null` when it does. Never rejects. */
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
      return `the disk of ${this.dir} refuses writes: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  private async probe(): Promise<void> {
    const path = join(this.dir, PROBE_NAME);
    // An earlier probe may have failed before it removed its file.
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
