import type { BlobRef } from '../rows.ts';

/** Immutable bytes, addressed by their content. */
export interface BlobStore {
  /**
   * Resolves once the bytes are durable. Storing the same bytes again is cheap, and makes them as young as new ones. Throws
   * `store_unavailable`.
   */
  put(bytes: Buffer): Promise<BlobRef>;
  /** Throws `store_unavailable` when the bytes are missing or are no longer what was stored. */
  get(ref: string): Promise<Buffer>;
  /** Names of blobs stored before `beforeMs` (Unix time by the store's own clock); for cleaning up. */
  olderThan(beforeMs: number): AsyncIterable<string>;
  /**
   * Removes what was stored before `beforeMs`, as in {@link olderThan}; what has been stored again since stays. Removing what
   * is not there is no error. Throws `store_unavailable`.
   */
  remove(ref: string, beforeMs: number): Promise<void>;
  close(): Promise<void>;
}
