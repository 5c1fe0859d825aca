import { KIB } from '../../core/bytes.ts';
import type { BlobStore, ResultWithSummary } from '../../store/index.ts';

const CLOSE = Buffer.from('}');
const NULL = Buffer.from('null');

/** Length up to which short texts are joined before they are sent, because one write for each would cost more than the texts. */
const CHUNK_CHARS = 64 * KIB;

type StoredResult = Pick<ResultWithSummary, 'summary' | 'cursor' | 'trajectory_ref' | 'trajectory_bytes'>;

/** The SessionResult up to its trajectory. The stored summary is a JSON object with fields, so its last byte is the brace. */
function head(row: StoredResult): Buffer {
  return Buffer.from(`${row.summary.slice(0, -1)},"cursor":${row.cursor},"trajectory":`);
}

/** One SessionResult as JSON on one line. The trajectory's bytes are inserted as they were delivered. */
async function* sessionResultBytes(row: StoredResult, blobs: BlobStore): AsyncGenerator<Buffer> {
  // Read before the first byte is sent, so that an unreadable blob fails the request instead of truncating the reply.
  const trajectory = row.trajectory_ref === null ? NULL : await blobs.get(row.trajectory_ref);
  yield head(row);
  yield trajectory;
  yield CLOSE;
}

/** The length of {@link sessionResultBytes} in bytes, computed without reading the trajectory. */
export function sessionResultLength(row: StoredResult): number {
  return head(row).length + (row.trajectory_ref === null ? NULL.length : row.trajectory_bytes) + CLOSE.length;
}

/** A JSON array of SessionResults between `before` and `after`. */
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

/** A JSON array of the given JSON texts between `before` and `after`, in chunks of about {@link CHUNK_CHARS} characters. */
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

/** The length of {@link resultListBytes} in bytes, for results with these lengths. */
export function resultListLength(before: string, lengths: readonly number[], after: string): number {
  const results = lengths.reduce((sum, length) => sum + length, 0);
  const commas = Math.max(0, lengths.length - 1);
  return Buffer.byteLength(before) + Buffer.byteLength(after) + results + commas + '[]'.length;
}

/** One SessionResult per line, as `application/x-ndjson`. */
export async function* resultLines(rows: readonly StoredResult[], blobs: BlobStore): AsyncGenerator<Buffer> {
  for (const row of rows) {
    yield* sessionResultBytes(row, blobs);
    yield Buffer.from('\n');
  }
}
