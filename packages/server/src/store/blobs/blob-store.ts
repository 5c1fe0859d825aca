import { createHash } from 'node:crypto';
import { FloeError } from '@floe-rl/core';
import type { BlobRef } from '../rows.ts';

/** Stores immutable bytes under the SHA-256 of their content. */
export interface BlobStore {
  /**
   * Stores bytes, and resolves once they are durable. Storing a blob that exists is cheap and restarts its age, so that a clean-up of old
   * blobs does not remove it. Throws `store_unavailable` when the store fails.
   */
  put(bytes: Buffer): Promise<BlobRef>;
  /**
   * Returns the bytes of a blob. Throws `corrupt_record` when the blob is missing or its bytes do not match its hash, and
   * `store_unavailable` when the store cannot be read.
   */
  get(ref: string): Promise<Buffer>;
  /**
   * Yields the names of the blobs that were last stored before `beforeMs` (Unix time in milliseconds by the store's clock). They are
   * candidates for removal.
   */
  olderThan(beforeMs: number): AsyncIterable<string>;
  /**
   * Removes a blob if it was last stored before `beforeMs`. A blob that was stored again later is kept. A missing blob is not an error.
   * Throws `store_unavailable` when the store fails.
   */
  remove(ref: string, beforeMs: number): Promise<void>;
  close(): Promise<void>;
}

/** Returns the bytes of the blob `ref`. Throws `corrupt_record` when they are missing (`null`) or do not match the name of the blob. */
export function intactBlob(ref: string, bytes: Buffer | null): Buffer {
  if (bytes === null) throw new FloeError('corrupt_record', `blob ${ref} is missing`, { ref });
  if (createHash('sha256').update(bytes).digest('hex') === ref) return bytes;
  throw new FloeError('corrupt_record', `blob ${ref} is damaged: its bytes no longer match its name`, { ref });
}
