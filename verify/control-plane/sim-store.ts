import { createHash } from 'node:crypto';
import { FloeError } from '@floe-rl/core';
import type { BlobRef, BlobStore, Store, StoreTables } from '#server/store/index';
import type { Disk, MemoryDatabase, SyncOutcome } from './memory-store/database.ts';
import type { RowChange } from './memory-store/state.ts';
import type { SeededRandom } from './random.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

/** Probability of each fault of the simulated disk, per commit. */
export type DiskFaults = {
  readonly refuse: number;
  /** Probability that a commit succeeds although the code that committed gets an error. */
  readonly unknown: number;
  readonly interrupt: number;
  readonly slow: number;
};

export const RELIABLE_DISK: DiskFaults = { refuse: 0, unknown: 0, interrupt: 0, slow: 0 };

type Range = { readonly from: number; readonly to: number };

/** Range in ms from which the duration of a slow sync to disk is drawn. */
const SLOW_SYNC_MS = { from: 20, to: 600 };
/** Range in ms from which the latency between a server and the database is drawn. */
const DATABASE_LATENCY_MS = { from: 0.05, to: 0.8 };
/** A message that one server broadcasts to the other servers through the database arrives after a random time in this range, in ms. */
const ANNOUNCEMENT_DELAY_MS = { from: 0.2, to: 30 };
/** A write to the blob store takes a random time in this range, in ms. */
const BLOB_WRITE_MS = { from: 0.2, to: 8 };

/** The simulated disk on which the database of a cluster is stored, with injected faults. */
export class SimDisk implements Disk {
  faults: DiskFaults = RELIABLE_DISK;
  /** The server process that is committing a transaction; `null` before the first transaction. */
  owner: SimProcess | null = null;
  private readonly timeline: Timeline;
  private readonly random: SeededRandom;
  private readonly onCommit: (changes: readonly RowChange[]) => void;
  private readonly syncMs: Range;

  constructor(
    timeline: Timeline,
    random: SeededRandom,
    onCommit: (changes: readonly RowChange[]) => void,
    syncMs: Range,
  ) {
    this.syncMs = syncMs;
    this.timeline = timeline;
    this.random = random;
    this.onCommit = onCommit;
  }

  async sync(): Promise<SyncOutcome> {
    const { owner, random } = this;
    const slow = random.chance(this.faults.slow);
    const range = slow ? SLOW_SYNC_MS : this.syncMs;
    await this.timeline.pause(random.between(range.from, range.to));
    // The process that committed was killed during the sync and never receives the outcome, so the commit succeeds or fails at random.
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

/** The database of a simulated cluster, its disk, and whether the servers can reach it. */
export type SimDatabase = { readonly rows: MemoryDatabase; readonly disk: SimDisk; isReachable: boolean };

/** The connection of one simulated server process to the simulated database. */
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
      // A transaction is rejected when its process was killed while the transaction waited for earlier ones.
      if (!process.alive) throw new FloeError('store_unavailable', 'the connection is closed');
      if (!database.isReachable) throw new FloeError('store_unavailable', 'the database cannot be reached');
      database.disk.owner = process;
      return work(tables);
    });
  }
}

/** The blob store of a simulated cluster: its blobs by reference (SHA-256), and the rate at which writes fail. */
export type BlobFiles = {
  readonly blobs: Map<string, { readonly bytes: Buffer; storedMs: number }>;
  /** Probability that a write of a blob fails. Half of the failing writes store the bytes nevertheless. */
  putFailureRate: number;
};

/**
 * The connection of one simulated server process to the blob store. The age of a blob is measured in virtual time, so the process's skewed
 * clock does not affect it.
 */
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
    // When the process was killed during the write, the bytes are stored with a probability of one half.
    const isStored = fails || !process.alive ? random.chance(0.5) : true;
    if (isStored) files.blobs.set(ref, { bytes: Buffer.from(bytes), storedMs: this.timeline.clock.nowMs() });
    if (fails) throw new FloeError('store_unavailable', 'the disk is full');
    return { ref, bytes: bytes.length };
  }
}
