import type { BlobRef } from './rows.ts';

/** Immutable bytes, addressed by their content. */
export interface BlobStore {
  /** Resolves once the bytes are durable. Storing the same bytes again is free. Throws `store_unavailable`. */
  put(bytes: Buffer): Promise<BlobRef>;
  /** Throws `store_unavailable` when the bytes are missing or are no longer what was stored. */
  get(ref: string): Promise<Buffer>;
}
