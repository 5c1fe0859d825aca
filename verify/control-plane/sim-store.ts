import { createHash } from 'node:crypto';
import { FloeError } from '../../src/core/errors.ts';
import type { BlobRef, BlobStore, Store, StoreTables } from '../../src/store/index.ts';
import type { Disk, MemoryDatabase, SyncOutcome } from './memory-store/database.ts';
import type { RowChange } from './memory-store/state.ts';
import type { SeededRandom } from './random.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

/** Probabilities per commit of the faults of the simulated disk. */
export type DiskFaults = {
  readonly refuse: number;
  /** Probability that a commit succeeds although its caller gets an error. */
  readonly unknown: number;
  readonly interrupt: number;
  readonly slow: number;
};

export const RELIABLE_DISK: DiskFaults = { refuse: 0, unknown: 0, interrupt: 0, slow: 0 };

/** Range of the duration of a sync to disk, ms. */
const SYNC_MS = { from: 0.2, to: 2 };
/** Range of the duration of a slow sync to disk, ms. */
const SLOW_SYNC_MS = { from: 20, to: 600 };
/** Range of the latency from a server to the database or back, ms. */
const DATABASE_LATENCY_MS = { from: 0.05, to: 0.8 };
/** Range of the delay of a message that one server announces to the other servers, ms. */
const ANNOUNCEMENT_DELAY_MS = { from: 0.2, to: 30 };
/** Range of the time that it takes to write a blob, ms. */
const BLOB_WRITE_MS = { from: 0.2, to: 8 };

/** The disk under the database of a cluster, with injected faults. */
export class SimDisk implements Disk {
  faults: DiskFaults = RELIABLE_DISK;
  /** The process whose transaction is being committed. */
  owner: SimProcess | null = null;
  private readonly timeline: Timeline;
  private readonly random: SeededRandom;
  private readonly onCommit: (changes: readonly RowChange[]) => void;

  constructor(timeline: Timeline, random: SeededRandom, onCommit: (changes: readonly RowChange[]) => void) {
    this.timeline = timeline;
    this.random = random;
    this.onCommit = onCommit;
  }

  async sync(): Promise<SyncOutcome> {
    const { owner, random } = this;
    const slow = random.chance(this.faults.slow);
    const range = slow ? SLOW_SYNC_MS : SYNC_MS;
    await this.timeline.pause(random.between(range.from, range.to));
    // The caller was killed during the commit and never learns its outcome, so the commit succeeds or fails at random.
    if (owner !== null && !owner.alive) return random.chance(0.5) ? 'synced' : 'refused';
    if (random.chance(this.faults.refuse)) return 'refused';
    return random.chance(this.faults.unknown) ? 'unknown' : 'synced';
  }

  interrupts(): boolean {
    return this.random.chance(this.faults.interrupt);
  }

  committed(changes: readonly RowChange[]): void {
    this.onCommit(changes);
  }
}

/** The database of a cluster, its disk, and whether servers can reach it. */
export type SimDatabase = { readonly rows: MemoryDatabase; readonly disk: SimDisk; isReachable: boolean };

/** The connection of one server process to the database. */
export class SimStore implements Store {
  private readonly process: SimProcess;
  private readonly database: SimDatabase;
  private readonly timeline: Timeline;
  private readonly random: SeededRandom;
  private readonly announcementLossRate: () => number;

  constructor(
    process: SimProcess,
    cluster: { database: SimDatabase; timeline: Timeline; random: SeededRandom; announcementLossRate: () => number },
  ) {
    this.process = process;
    this.database = cluster.database;
    this.timeline = cluster.timeline;
    this.random = cluster.random;
    this.announcementLossRate = cluster.announcementLossRate;
  }

  transaction<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.process.receive(this.runInDatabase(work));
  }

  read<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    return this.transaction(work);
  }

  announce(message: string): void {
    if (!this.database.isReachable || this.random.chance(this.announcementLossRate())) return;
    this.timeline.after(this.random.between(ANNOUNCEMENT_DELAY_MS.from, ANNOUNCEMENT_DELAY_MS.to), () => {
      if (this.database.isReachable) this.database.rows.announce(this, message);
    });
  }

  listen(listener: (message: string) => void): () => void {
    const end = this.database.rows.subscribe(this, (message) => this.process.execute(() => listener(message)));
    this.process.onKill(end);
    return end;
  }

  async close(): Promise<void> {}

  private async runInDatabase<T>(work: (tables: StoreTables) => Promise<T>): Promise<T> {
    const { database, process, random, timeline } = this;
    await timeline.pause(random.between(DATABASE_LATENCY_MS.from, DATABASE_LATENCY_MS.to));
    // The transaction of a paused process starts only after the process is resumed.
    await new Promise<void>((resolve) => process.execute(resolve));
    return database.rows.run((tables) => {
      // A transaction is refused when its process was killed while the transaction was queued.
      if (!process.alive) throw new FloeError('store_unavailable', 'the connection is closed');
      if (!database.isReachable) throw new FloeError('store_unavailable', 'the database cannot be reached');
      database.disk.owner = process;
      return work(tables);
    });
  }
}

/** The blob store of a simulated cluster: its files, by reference, and the rate of its failures. */
export type BlobFiles = {
  readonly blobs: Map<string, { readonly bytes: Buffer; storedMs: number }>;
  /** Probability that storing a blob fails. Half of the failed calls have stored the bytes nevertheless. */
  putFailureRate: number;
};

/** The connection of one server process to the blob store. Blobs are stored with true time, not with the time of the process's clock. */
export class SimBlobs implements BlobStore {
  private readonly process: SimProcess;
  private readonly files: BlobFiles;
  private readonly timeline: Timeline;
  private readonly random: SeededRandom;

  constructor(process: SimProcess, cluster: { files: BlobFiles; timeline: Timeline; random: SeededRandom }) {
    this.process = process;
    this.files = cluster.files;
    this.timeline = cluster.timeline;
    this.random = cluster.random;
  }

  put(bytes: Buffer): Promise<BlobRef> {
    return this.process.receive(this.write(bytes));
  }

  get(ref: string): Promise<Buffer> {
    const blob = this.files.blobs.get(ref);
    if (blob !== undefined) return Promise.resolve(blob.bytes);
    this.timeline.reportViolation('blobs', `blob ${ref} is read and does not exist`);
    return Promise.reject(new FloeError('store_unavailable', `blob ${ref} is missing`));
  }

  async *olderThan(beforeMs: number): AsyncGenerator<string> {
    for (const [ref, { storedMs }] of [...this.files.blobs]) if (storedMs < beforeMs) yield ref;
  }

  async remove(ref: string, beforeMs: number): Promise<void> {
    const blob = this.files.blobs.get(ref);
    if (blob !== undefined && blob.storedMs < beforeMs) this.files.blobs.delete(ref);
  }

  async close(): Promise<void> {}

  private async write(bytes: Buffer): Promise<BlobRef> {
    const { random, files, process } = this;
    const ref = createHash('sha256').update(bytes).digest('hex');
    const fails = random.chance(files.putFailureRate);
    await this.timeline.pause(random.between(BLOB_WRITE_MS.from, BLOB_WRITE_MS.to));
    // When the process was killed during the write, the bytes are stored or not at random.
    const isStored = fails || !process.alive ? random.chance(0.5) : true;
    if (isStored) files.blobs.set(ref, { bytes: Buffer.from(bytes), storedMs: this.timeline.clock.nowMs() });
    if (fails) throw new FloeError('store_unavailable', 'the disk is full');
    return { ref, bytes: bytes.length };
  }
}
