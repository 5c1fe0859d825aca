import { mkdir, readdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, FloeError, MIB, messageOf, nextEventLoopTurn, systemClock } from '@floe-rl/core';
import { z } from 'zod';
import { chooseBase, encodeCompletion } from '../../tokens/codec.ts';
import type { Completion } from '../../tokens/completion.ts';
import { type AppendFile, FRAME_HEADER_BYTES, framed, type OpenAppendFile, openAppendFile } from './append-file.ts';
import { batchedFiles } from './batched-file.ts';
import { attemptKey } from './journal-index.ts';

/** Records completions. This interface is the part of {@link CaptureJournal} that the proxy uses. */
export interface CompletionJournal {
  /**
   * Records a completion. Resolves with the size of its record in bytes when it is as durable as the {@link JournalMode} promises.
   * `earlier` are recorded completions of the same attempt; parts that the completion shares with them are written as references. Rejects
   * with `store_unavailable`, and the completion is then not recorded.
   */
  append(completion: Completion, earlier: readonly Completion[]): Promise<number>;
}

/**
 * Size in bytes at which the journal starts a new segment file. It is large enough that new files are rare. It is small enough that one
 * long session does not keep many records of ended sessions on the disk.
 */
const SEGMENT_BYTES = 64 * MIB;

/**
 * Time in milliseconds for which a batch waits for further records when the previous batch had several. Calls that end at the same time then
 * share a sync, which costs more CPU time than anything else in a small call.
 */
const GATHER_MS = 1;

const SEGMENT_NAME = /^capture-(\d{8})\.log$/;

/**
 * When a completion counts as recorded. `sync`: when it is on the disk. `batched`: when the kernel has it; it is on the disk some
 * milliseconds later, so it survives the end of the process, but perhaps not a loss of power.
 */
export const journalModeSchema = z.enum(['sync', 'batched']);
export type JournalMode = z.infer<typeof journalModeSchema>;

export type CaptureJournalOptions = {
  readonly segmentBytes?: number;
  /** Default: `sync`. */
  readonly mode?: JournalMode;
  /** Opens segment files in every mode. Default: the function of the mode; tests pass another function. */
  readonly openFile?: OpenAppendFile;
  /** Called with the milliseconds that a sync took. In mode `sync` this includes the write. Must not throw. */
  readonly onSync?: (tookMs: number) => void;
  /** The clock that measures the time for {@link onSync}; default: the system clock. */
  readonly clock?: Clock;
};

type Segment = {
  readonly path: string;
  readonly file: AppendFile;
  /** Keys ({@link attemptKey}) of the attempts that have records in the segment and were not released yet. */
  readonly attempts: Set<string>;
  bytes: number;
  /** Whether the segment is complete, so that no more records are written to it. */
  sealed: boolean;
};

type Waiting = {
  readonly frame: Buffer;
  readonly attemptKey: string;
  readonly resolve: () => void;
  readonly reject: (error: FloeError) => void;
};

/**
 * The capture journal of one gateway process. It ensures that every completion is recorded before the end of its reply leaves the proxy.
 * Records of all sessions that arrive during a write are written together in the next write. Only one journal at a time may use a
 * directory.
 */
export class CaptureJournal implements CompletionJournal {
  /** Paths of the segment files that earlier processes wrote. This journal never deletes them; `journal-index.ts` reads them. */
  readonly earlierSegments: readonly string[];
  private readonly directory: string;
  private readonly segmentBytes: number;
  private readonly openFile: OpenAppendFile;
  private readonly onWrite: (tookMs: number) => void;
  private readonly clock: Clock;
  private readonly segments = new Set<Segment>();
  private active: Segment | null = null;
  private nextNumber: number;
  private waiting: Waiting[] = [];
  private writing: Promise<void> | null = null;
  /** Whether the last batch had several records. */
  private isGathering = false;
  private closed = false;

  /**
   * Creates the directory if it does not exist, and opens a journal in it. Rejects with `store_unavailable` when the file system fails.
   */
  static async open(directory: string, options: CaptureJournalOptions = {}): Promise<CaptureJournal> {
    try {
      await mkdir(directory, { recursive: true, mode: 0o700 });
      const names = (await readdir(directory)).filter((name) => SEGMENT_NAME.test(name)).sort();
      return new CaptureJournal(directory, names, options);
    } catch (cause) {
      throw unavailable(`cannot be opened in ${directory}`, cause);
    }
  }

  private constructor(directory: string, names: readonly string[], options: CaptureJournalOptions) {
    this.directory = directory;
    this.earlierSegments = names.map((name) => join(directory, name));
    this.nextNumber = 1 + Number(SEGMENT_NAME.exec(names.at(-1) ?? '')?.[1] ?? 0);
    this.segmentBytes = options.segmentBytes ?? SEGMENT_BYTES;
    const { mode = 'sync', onSync = () => {}, clock = systemClock } = options;
    this.clock = clock;
    this.openFile = options.openFile ?? (mode === 'sync' ? openAppendFile : batchedFiles({ clock, onSync }));
    this.onWrite = mode === 'sync' ? onSync : () => {};
  }

  /** Total size in bytes of the segment files that this process has written and not deleted. */
  get bytes(): number {
    let sum = 0;
    for (const segment of this.segments) sum += segment.bytes;
    return sum;
  }

  append(completion: Completion, earlier: readonly Completion[]): Promise<number> {
    if (this.closed) return Promise.reject(unavailable('is closed'));
    const frame = framed(encodeCompletion(completion, chooseBase(completion, earlier), FRAME_HEADER_BYTES));
    return new Promise((resolve, reject) => {
      this.waiting.push({
        frame,
        attemptKey: attemptKey(completion.sessionId, completion.attempt),
        resolve: () => resolve(frame.length),
        reject,
      });
      this.writing ??= this.writeWaiting();
    });
  }

  /**
   * Releases the records of an attempt. To be called when the attempt's result is stored elsewhere, so that its records are no longer
   * needed. Deletes each complete segment file whose attempts are all released.
   */
  async release(sessionId: string, attempt: number): Promise<void> {
    const key = attemptKey(sessionId, attempt);
    const done: Segment[] = [];
    for (const segment of this.segments) {
      if (segment.attempts.delete(key) && segment.sealed && segment.attempts.size === 0) done.push(segment);
    }
    await Promise.all(done.map((segment) => this.remove(segment)));
  }

  /**
   * Writes the waiting records, then closes the journal. Segment files with records of unreleased attempts stay on the disk. May be called
   * more than once.
   */
  async close(): Promise<void> {
    this.closed = true;
    await this.writing;
    const { active } = this;
    this.active = null;
    if (active !== null) await this.seal(active);
  }

  /**
   * Writes the waiting records in batches, one after another. The first batch has all records of this iteration of the event loop. Records
   * that arrive while a batch is written form the next batch.
   */
  private async writeWaiting(): Promise<void> {
    await nextEventLoopTurn();
    while (this.waiting.length > 0) {
      if (this.isGathering) await new Promise<void>((resolve) => this.clock.schedule(GATHER_MS, resolve));
      const batch = this.waiting;
      this.waiting = [];
      this.isGathering = batch.length > 1;
      try {
        await this.write(batch);
      } catch (cause) {
        const error = unavailable(`cannot write: ${messageOf(cause)}`, cause);
        for (const entry of batch) entry.reject(error);
        continue;
      }
      for (const entry of batch) entry.resolve();
    }
    this.writing = null;
  }

  private async write(batch: readonly Waiting[]): Promise<void> {
    const segment = this.active ?? (await this.openSegment());
    const frames = batch.map((entry) => entry.frame);
    const data = frames.length === 1 ? (frames[0] as Buffer) : Buffer.concat(frames);
    // A segment is deleted when no attempt needs its records any more. The attempts of this batch are therefore added to the segment before
    // the write, so that it is not deleted meanwhile.
    for (const entry of batch) segment.attempts.add(entry.attemptKey);
    try {
      const startedMs = this.clock.monotonicMs();
      await segment.file.append(data);
      this.onWrite(this.clock.monotonicMs() - startedMs);
    } catch (error) {
      // After a failed write the content of the file is unknown, and a failed sync cannot be repeated. The next batch therefore opens a new
      // segment file.
      this.active = null;
      await this.seal(segment).catch(() => {});
      throw error;
    }
    segment.bytes += data.length;
    if (segment.bytes < this.segmentBytes) return;
    this.active = null;
    await this.seal(segment);
  }

  private async openSegment(): Promise<Segment> {
    const name = `capture-${String(this.nextNumber++).padStart(8, '0')}.log`;
    const path = join(this.directory, name);
    const segment: Segment = { path, file: await this.openFile(path), attempts: new Set(), bytes: 0, sealed: false };
    this.segments.add(segment);
    this.active = segment;
    return segment;
  }

  private async seal(segment: Segment): Promise<void> {
    segment.sealed = true;
    await segment.file.close();
    if (segment.attempts.size === 0) await this.remove(segment);
  }

  private async remove(segment: Segment): Promise<void> {
    // This method may be called twice for one segment: when the segment is sealed and, concurrently, when its last attempt is released.
    // Only the first call deletes the file.
    if (this.segments.delete(segment)) await unlink(segment.path);
  }
}

function unavailable(what: string, cause?: unknown): FloeError {
  return new FloeError('store_unavailable', `the capture journal ${what}`, {}, cause);
}
