import { open, readFile } from 'node:fs/promises';
import { attemptOf, decodeCompletion } from '../../tokens/codec.ts';
import type { Completion } from '../../tokens/completion.ts';
import { decodeFrame, frameRange, readFrames } from './append-file.ts';

/** The position and length in bytes of one journal record within its segment file. */
export type RecordLocation = { readonly path: string; readonly offset: number; readonly length: number };

export type SegmentIndex = {
  /** Maps the key of each attempt ({@link attemptKey}) to the locations of its records, in the order of writing. */
  readonly locations: ReadonlyMap<string, readonly RecordLocation[]>;
  /** Number of bytes after the last whole record of the segment file. An interrupted write leaves such bytes. */
  readonly tornBytes: number;
  /** The number of damaged byte ranges that precede a whole record, plus the number of whole records that are not completions. */
  readonly damaged: number;
};

/** Number of records that are indexed between two yields to the event loop. */
const YIELD_EVERY = 64;

export function attemptKey(sessionId: string, attempt: number): string {
  return `${sessionId}#${attempt}`;
}

/**
 * Finds the locations of all records in a segment file of the journal, grouped by attempt. The records themselves are not kept, so only one
 * segment at a time is in memory. Rejects when the file cannot be read.
 */
export async function indexSegment(path: string): Promise<SegmentIndex> {
  const data = await readFile(path);
  const { frames, tornBytes, corrupt } = readFrames(data);
  const locations = new Map<string, RecordLocation[]>();
  let damaged = corrupt.length;
  for (const [count, record] of frames.entries()) {
    if (count % YIELD_EVERY === 0) await new Promise((resolve) => setImmediate(resolve));
    const key = keyOf(record);
    if (key === null) {
      damaged++;
      continue;
    }
    const ofAttempt = locations.get(key) ?? [];
    locations.set(key, ofAttempt);
    ofAttempt.push({ path, ...frameRange(data, record) });
  }
  return { locations, tornBytes, damaged };
}

/**
 * Returns the key of the attempt that a record belongs to; `null` when the record is not a completion in the current format. The caller
 * counts such a record as damaged.
 */
function keyOf(record: Buffer): string | null {
  try {
    const { sessionId, attempt } = attemptOf(record);
    return attemptKey(sessionId, attempt);
  } catch {
    return null;
  }
}

export type RecordReading = {
  readonly completions: readonly Completion[];
  /** The number of records that cannot be decoded, because they are damaged or refer to a damaged record. */
  readonly undecodable: number;
};

/** Reads the completions of one attempt, ordered by the arrival of their requests. Rejects when a file cannot be read. */
export async function readRecords(locations: readonly RecordLocation[]): Promise<RecordReading> {
  const known = new Map<string, Completion>();
  let undecodable = 0;
  for (let from = 0; from < locations.length; ) {
    const path = locations[from]?.path as string;
    const file = await open(path, 'r');
    try {
      for (; from < locations.length && locations[from]?.path === path; from++) {
        const { offset, length } = locations[from] as RecordLocation;
        const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, offset);
        const completion = decodedOrNull(buffer.subarray(0, bytesRead), known);
        if (completion === null) undecodable++;
        else known.set(completion.completionId, completion);
      }
    } finally {
      await file.close();
    }
  }
  return { completions: [...known.values()].sort((a, b) => a.index - b.index), undecodable };
}

/** Returns the completion in a frame; `null` when the frame cannot be decoded. The caller counts such frames. */
function decodedOrNull(frame: Buffer, known: ReadonlyMap<string, Completion>): Completion | null {
  try {
    return decodeCompletion(decodeFrame(frame), (id) => known.get(id));
  } catch {
    return null;
  }
}
