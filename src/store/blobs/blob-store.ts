import type { BlobRef } from '../rows.ts';

/** Immutable bytes, addressed by the SHA-256 of their content. */
export interface BlobStore {
  /**
   * Resolves once the bytes are durable. Storing bytes that are already stored is cheap, and renews their age. Throws
   * `store_unavailable`.
   */
  put(bytes: Buffer): Promise<BlobRef>;
  /** Throws `store_unavailable` when the blob is missing or its bytes have changed. */
  get(ref: string): Promise<Buffer>;
  /** The names of blobs stored before `beforeMs` (Unix time according to the store's clock). Used to remove old blobs. */
  olderThan(beforeMs: number): AsyncIterable<string>;
  /**
   * Removes a blob that was stored before `beforeMs`, and keeps one that was stored once more since. A blob that does not exist is no
   * error. Throws `store_unavailable`.
   */
  remove(ref: string, beforeMs: number): Promise<void>;
  close(): Promise<void>;
}
