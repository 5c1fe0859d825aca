import { KIB } from '../../core/bytes.ts';
import type { BlobStore, ResultWithSummary } from '../../store/index.ts';

const CLOSE = Buffer.from('}');
const NULL = Buffer.from('null');

/**
 * Maximum number of characters of short texts that are joined into one chunk, because a write for each text would cost more than the text.
 */
const CHUNK_CHARS = 64 * KIB;

type StoredResult = Pick<ResultWithSummary, 'summary' | 'cursor' | 'trajectory_ref' | 'trajectory_bytes'>;

/**
 * Returns the JSON of a SessionResult up to its trajectory. It is made from the stored summary by removing the last byte, which is the
 * closing brace of a JSON object that has fields.
 */
function head(row: StoredResult): Buffer {
  return Buffer.from(`${row.summary.slice(0, -1)},"cursor":${row.cursor},"trajectory":`);
}

/** Yields one SessionResult as JSON on one line. The trajectory's bytes are inserted as they were delivered. */
async function* sessionResultBytes(row: StoredResult, blobs: BlobStore): AsyncGenerator<Buffer> {
  // The trajectory is read before the first byte is sent, so that an unreadable blob fails the request instead of truncating the reply.
  const trajectory = row.trajectory_ref === null ? NULL : await blobs.get(row.trajectory_ref);
  yield head(row);
  yield trajectory;
  yield CLOSE;
}

/** Returns the length of {@link sessionResultBytes} in bytes, computed without reading the trajectory. */
export function sessionResultLength(row: StoredResult): number {
  return head(row).length + (row.trajectory_ref === null ? NULL.length : row.trajectory_bytes) + CLOSE.length;
}

/** Yields `before`, a JSON array of SessionResults, and `after`. */
export async function* resultListBytes(
  before: string,
  rows: Iterable<StoredResult> | AsyncIterable<StoredResult>,
  after: string,
  blobs: BlobStore,
): AsyncGenerator<Buffer> {
  let separator = `${before}[`;
  for await (const row of rows) {
    for await (const bytes of sessionResultBytes(row, blobs)) {
      if (separator !== '') yield Buffer.from(separator);
      separator = '';
      yield bytes;
    }
    separator = ',';
  }
  yield Buffer.from(separator === ',' ? `]${after}` : `${separator}]${after}`);
}

/** Yields `before`, a JSON array of the given JSON texts, and `after`, in chunks of about {@link CHUNK_CHARS} characters. */
export async function* jsonListBytes(
  before: string,
  texts: AsyncIterable<string>,
  after: string,
): AsyncGenerator<Buffer> {
  let chunk = `${before}[`;
  let comma = '';
  for await (const text of texts) {
    chunk += comma + text;
    comma = ',';
    if (chunk.length < CHUNK_CHARS) continue;
    yield Buffer.from(chunk);
    chunk = '';
  }
  yield Buffer.from(`${chunk}]${after}`);
}

/** Returns the length in bytes of {@link resultListBytes} for results with these lengths. */
export function resultListLength(before: string, lengths: readonly number[], after: string): number {
  const results = lengths.reduce((sum, length) => sum + length, 0);
  const commas = Math.max(0, lengths.length - 1);
  return Buffer.byteLength(before) + Buffer.byteLength(after) + results + commas + '[]'.length;
}

/** Yields the results as `application/x-ndjson`, one SessionResult per line. */
export async function* resultLines(rows: readonly StoredResult[], blobs: BlobStore): AsyncGenerator<Buffer> {
  for (const row of rows) {
    yield* sessionResultBytes(row, blobs);
    yield Buffer.from('\n');
  }
}
