import { createHash } from 'node:crypto';
import type { BlobRef, BlobStore } from '../../src/store/index.ts';

/** A blob store in memory, for tests with thousands of deliveries. `beforePut` is called while bytes are being stored. */
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
    const bytes = this.all.get(ref);
    if (bytes === undefined) throw new Error(`no blob ${ref}`);
    return bytes;
  }

  async *olderThan(): AsyncGenerator<string> {
    yield* this.all.keys();
  }

  async remove(ref: string): Promise<void> {
    this.all.delete(ref);
  }

  async close(): Promise<void> {}
}
