import { createHash } from 'node:crypto';
import { intactBlob } from '../../src/store/blobs/blob-store.ts';
import type { BlobRef, BlobStore } from '../../src/store/index.ts';

/**
 * A blob store in memory, for tests with thousands of deliveries. A test may set `beforePut`, which `put` calls before it stores the bytes.
 */
export class MemoryBlobs implements BlobStore {
  readonly all = new Map<string, Buffer>();
  beforePut: () => Promise<void> = async () => {};

  async put(bytes: Buffer): Promise<BlobRef> {
    await this.beforePut();
    const ref = createHash('sha256').update(bytes).digest('hex');
    this.all.set(ref, Buffer.from(bytes));
    return { ref, bytes: bytes.length };
  }

  async get(ref: string): Promise<Buffer> {
    return intactBlob(ref, this.all.get(ref) ?? null);
  }

  async *olderThan(): AsyncGenerator<string> {
    yield* this.all.keys();
  }

  async remove(ref: string): Promise<void> {
    this.all.delete(ref);
  }

  async close(): Promise<void> {}
}
