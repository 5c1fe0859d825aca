import { createHash } from 'node:crypto';
import { FloeError } from '../../src/core/errors.ts';
import type { BlobRef, BlobStore } from '../../src/store/index.ts';
import type { Dice } from './dice.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

const WRITE_MS = { from: 0.2, to: 8 };

/** The blobs of one world. */
export type BlobShelf = {
  readonly blobs: Map<string, { readonly bytes: Buffer; storedMs: number }>;
  /** Chance of a put that fails; half of those have stored the bytes all the same. */
  failPut: number;
};

/** How one server process reaches the blobs. Its clock is the shelf's, not its own. */
export class SimBlobs implements BlobStore {
  private readonly process: SimProcess;
  private readonly shelf: BlobShelf;
  private readonly timeline: Timeline;
  private readonly dice: Dice;

  constructor(process: SimProcess, world: { shelf: BlobShelf; timeline: Timeline; dice: Dice }) {
    this.process = process;
    this.shelf = world.shelf;
    this.timeline = world.timeline;
    this.dice = world.dice;
  }

  put(bytes: Buffer): Promise<BlobRef> {
    return this.process.outside(this.write(bytes));
  }

  get(ref: string): Promise<Buffer> {
    const blob = this.shelf.blobs.get(ref);
    if (blob !== undefined) return Promise.resolve(blob.bytes);
    this.timeline.violate('blobs', `blob ${ref} is read and is not there`);
    return Promise.reject(new FloeError('store_unavailable', `blob ${ref} is missing`));
  }

  async *olderThan(beforeMs: number): AsyncGenerator<string> {
    for (const [ref, { storedMs }] of [...this.shelf.blobs]) if (storedMs < beforeMs) yield ref;
  }

  async remove(ref: string, beforeMs: number): Promise<void> {
    const blob = this.shelf.blobs.get(ref);
    if (blob !== undefined && blob.storedMs < beforeMs) this.shelf.blobs.delete(ref);
  }

  async close(): Promise<void> {}

  private async write(bytes: Buffer): Promise<BlobRef> {
    const { dice, shelf, process } = this;
    const ref = createHash('sha256').update(bytes).digest('hex');
    const fails = dice.chance(shelf.failPut);
    await this.timeline.pause(dice.between(WRITE_MS.from, WRITE_MS.to));
    // A process that dies meanwhile may have got it to disk or not.
    const kept = fails || !process.alive ? dice.chance(0.5) : true;
    if (kept) shelf.blobs.set(ref, { bytes: Buffer.from(bytes), storedMs: this.timeline.clock.nowMs() });
    if (fails) throw new FloeError('store_unavailable', 'the disk is full');
    return { ref, bytes: bytes.length };
  }
}
