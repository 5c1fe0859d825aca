import { FloeError } from '@floe-rl/core';
import { LRUCache } from 'lru-cache';
import type { BlobStore, ResultWithSummary } from '../../store/index.ts';

/** Maximum number of unreadable blobs that are remembered. Without a limit, a lost blob directory would fill the memory. */
const MAX_REMEMBERED = 10_000;

type StoredTrajectory = Pick<ResultWithSummary, 'session_id' | 'cursor' | 'trajectory_ref'>;

/**
 * Reads the trajectories of results. When a trajectory's blob is missing or damaged, the reader gets an error in place of the trajectory. It
 * receives the result without the trajectory and can continue with the next result.
 */
export class TrajectoryReader {
  private readonly blobs: BlobStore;
  private readonly onUnreadable: (row: StoredTrajectory, problem: FloeError) => void;
  private readonly unreadable = new LRUCache<string, FloeError>({ max: MAX_REMEMBERED });

  /** `onUnreadable` is called when a read finds that a trajectory is missing or damaged and this was not known before. */
  constructor(blobs: BlobStore, onUnreadable: (row: StoredTrajectory, problem: FloeError) => void) {
    this.blobs = blobs;
    this.onUnreadable = onUnreadable;
  }

  /**
   * Resolves to the bytes of a result's trajectory, `null` when the result has none, or the error `corrupt_record` when its blob is missing
   * or damaged. Rejects with `store_unavailable` when the blob store fails.
   */
  async read(row: StoredTrajectory): Promise<Buffer | FloeError | null> {
    const { trajectory_ref: ref } = row;
    if (ref === null) return null;
    try {
      const bytes = await this.blobs.get(ref);
      this.unreadable.delete(ref);
      return bytes;
    } catch (thrown) {
      if (!FloeError.is(thrown) || thrown.code !== 'corrupt_record') throw thrown;
      if (!this.unreadable.has(ref)) this.onUnreadable(row, thrown);
      this.unreadable.set(ref, thrown);
      return thrown;
    }
  }

  /** Returns the error of the last read of a trajectory; `undefined` when the read succeeded or there was none. */
  lastError({ trajectory_ref: ref }: Pick<StoredTrajectory, 'trajectory_ref'>): FloeError | undefined {
    return ref === null ? undefined : this.unreadable.get(ref);
  }
}
