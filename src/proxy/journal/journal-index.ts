import { open, readFile } from 'node:fs/promises';
import { attemptOf, decodeCompletion } from '../../tokens/codec.ts';
import type { Completion } from '../../tokens/completion.ts';
import { readFrames } from './frames.ts';

/** Where a record lies. */
export type RecordPlace = { readonly path: string; readonly offset: number; readonly length: number };

export type SegmentIndex = {
  /** Places of the records of each attempt, by `<session>#<attempt>`, in order. */
  readonly places: ReadonlyMap<string, readonly RecordPlace[]>;
  /** Bytes behind the last whole record: a write that was cut off. */
  readonly tornBytes: number;
  /** Byte ranges that are damaged although whole records follow, and whole records that are not completions. */
  readonly damaged: number;
};

/** Records looked at before others get their turn. */
const YIELD_EVERY = 64;

export function attemptKey(sessionId: string, attempt: number): string {
  return `${sessionId}#${attempt}`;
}

/**
 * Finds out whose records a segment holds, without keeping any: one segment is in memory at a time. Rejects as reading
 * the file does.
 */
export async function indexSegment(path: string): Promise<SegmentIndex> {
  const data = await readFile(path);
  const { frames, tornBytes, corrupt } = readFrames(data);
  const places = new Map<string, RecordPlace[]>();
  let damaged = corrupt.length;
  for (const [count, frame] of frames.entries()) {
    if (count % YIELD_EVERY === 0) await new Promise((resolve) => setImmediate(resolve));
    const owner = ownerOf(frame);
    if (owner === null) {
      damaged++;
      continue;
    }
    const own = places.get(owner) ?? [];
    places.set(owner, own);
    own.push({ path, offset: frame.byteOffset - data.byteOffset, length: frame.length });
  }
  return { places, tornBytes, damaged };
}

function ownerOf(frame: Buffer): string | null {
  try {
    const { sessionId, attempt } = attemptOf(frame);
    return attemptKey(sessionId, attempt);
  } catch {
    // A whole record of another version, or none at all: counted by the caller.
    return null;
  }
}

export type RecordReading = {
  readonly completions: readonly Completion[];
  /** Records that do not decode, because of damage in them or in one that they build on. */
  readonly undecodable: number;
};

/** The completions of one attempt from where they lie. Rejects as reading the files does. */
export async function readRecords(places: readonly RecordPlace[]): Promise<RecordReading> {
  const known = new Map<string, Completion>();
  let undecodable = 0;
  for (let from = 0; from < places.length; ) {
    const path = places[from]?.path as string;
    const file = await open(path, 'r');
    try {
      for (; from < places.length && places[from]?.path === path; from++) {
        const { offset, length } = places[from] as RecordPlace;
        const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, offset);
        const completion = decoded(buffer.subarray(0, bytesRead), known);
        if (completion === null) undecodable++;
        else known.set(completion.completionId, completion);
      }
    } finally {
      await file.close();
    }
  }
  return { completions: [...known.values()].sort((a, b) => a.index - b.index), undecodable };
}

function decoded(record: Buffer, known: ReadonlyMap<string, Completion>): Completion | null {
  try {
    return decodeCompletion(record, (id) => known.get(id));
  } catch {
    // Counted by the caller, who keeps the segment.
    return null;
  }
}
