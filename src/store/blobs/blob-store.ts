import type { BlobRef } from '../rows.ts';

/** Stores immutable bytes under the SHA-256 of their content. */
export interface BlobStore {
  /**
   * Stores bytes, and resolves once they are durable. Storing bytes that are already stored is cheap, and makes the blob count as new.
   * Throws `store_unavailable`.
   */
  put(bytes: Buffer): Promise<BlobRef>;
  /** Returns the bytes of a blob. Throws `store_unavailable` when the blob is missing or its bytes have changed. */
  get(ref: string): Promise<Buffer>;
  /**
   * Yields the names of blobs that were stored before `beforeMs` (Unix time according to the store's clock), so that old blobs can be
   * removed.
   */
  olderThan(beforeMs: number): AsyncIterable<string>;
  /**
   * Removes a blob that was stored before `beforeMs`. A blob that has been stored once more since is kept, and one that does not exist is
   * no error. Throws `store_unavailable`.
   */
  remove(ref: string, beforeMs: number): Promise<void>;
  close(): Promise<void>;
}
