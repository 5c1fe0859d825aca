import { type Clock, MIB } from '@floe-rl/core';
import {
  type AppendFile,
  type OpenAppendFile,
  type OpenUnsyncedFile,
  openUnsyncedFile,
  type UnsyncedFile,
} from './append-file.ts';

/** Time in milliseconds from an append to the start of the sync that makes it durable, unless an earlier sync is still running. */
export const SYNC_DELAY_MS = 10;

/** Number of unsynced bytes at which an append waits for a sync. It limits how many bytes a loss of power can destroy when the disk is slow. */
export const MAX_UNSYNCED_BYTES = 4 * MIB;

type BatchedFileDeps = {
  readonly clock: Clock;
  /** Called with the milliseconds that a sync took. Must not throw. */
  readonly onSync: (tookMs: number) => void;
  /** Opens the file that is written to. Default: {@link openUnsyncedFile}; tests pass another function. */
  readonly openFile?: OpenUnsyncedFile;
};

/**
 * Returns a function that opens files whose `append` resolves when the kernel has the bytes. One sync for many appends makes them durable
 * within {@link SYNC_DELAY_MS}. After a failed sync, the next `append` or `close` rejects with its error.
 */
export function batchedFiles(deps: BatchedFileDeps): OpenAppendFile {
  return async (path) => new BatchedFile(await (deps.openFile ?? openUnsyncedFile)(path), deps);
}

class BatchedFile implements AppendFile {
  private readonly file: UnsyncedFile;
  private readonly deps: BatchedFileDeps;
  private unsyncedBytes = 0;
  private cancelTimer: (() => void) | null = null;
  private syncing: Promise<void> | null = null;
  private failure: { readonly error: unknown } | null = null;

  constructor(file: UnsyncedFile, deps: BatchedFileDeps) {
    this.file = file;
    this.deps = deps;
  }

  async append(data: Buffer): Promise<void> {
    if (this.unsyncedBytes >= MAX_UNSYNCED_BYTES) await this.sync();
    this.throwFailure();
    await this.file.append(data);
    this.unsyncedBytes += data.length;
    this.syncLater();
  }

  async close(): Promise<void> {
    await this.syncing;
    if (this.unsyncedBytes > 0 && this.failure === null) await this.sync();
    this.cancelTimer?.();
    await this.file.close();
    this.throwFailure();
  }

  private throwFailure(): void {
    if (this.failure !== null) throw this.failure.error;
  }

  private syncLater(): void {
    if (this.syncing !== null || this.failure !== null || this.unsyncedBytes === 0) return;
    this.cancelTimer ??= this.deps.clock.schedule(SYNC_DELAY_MS, () => void this.sync());
  }

  /** Never rejects. Concurrent calls share one sync. */
  private sync(): Promise<void> {
    this.cancelTimer?.();
    this.cancelTimer = null;
    this.syncing ??= this.syncAppended();
    return this.syncing;
  }

  private async syncAppended(): Promise<void> {
    const { clock, onSync } = this.deps;
    const startedMs = clock.monotonicMs();
    const bytes = this.unsyncedBytes;
    try {
      await this.file.sync();
      this.unsyncedBytes -= bytes;
      onSync(clock.monotonicMs() - startedMs);
    } catch (error) {
      this.failure = { error };
    }
    this.syncing = null;
    this.syncLater();
  }
}
