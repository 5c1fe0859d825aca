import type { BlobStore, ResultWithSummary } from '../../store/index.ts';

const CLOSE = Buffer.from('}');
const NULL = Buffer.from('null');

/** Small texts go out together: a write for each would cost more than they do. */
const PIECE_CHARS = 64 * 1024;

type StoredResult = Pick<ResultWithSummary, 'summary' | 'cursor' | 'trajectory_ref' | 'trajectory_bytes'>;

/** The SessionResult up to its trajectory. The stored summary is a JSON object with fields, so its last byte is the brace. */
function head(row: StoredResult): Buffer {
  return Buffer.from(`${row.summary.slice(0, -1)},"cursor":${row.cursor},"trajectory":`);
}

/** One SessionResult as JSON on one line. The trajectory's bytes are put in as they were delivered. */
export async function* sessionResultBytes(row: StoredResult, blobs: BlobStore): AsyncGenerator<Buffer> {
  // Read before the first byte goes out: a blob that cannot be read then fails the request instead of cutting it off.
  const trajectory = row.trajectory_ref === null ? NULL : await blobs.get(row.trajectory_ref);
  yield head(row);
  yield trajectory;
  yield CLOSE;
}

/** The length of {@link sessionResultBytes}, known without reading the trajectory. */
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
  let lead = `${before}[`;
  for await (const row of rows) {
    for await (const bytes of sessionResultBytes(row, blobs)) {
      if (lead !== '') yield Buffer.from(lead);
      lead = '';
      yield bytes;
    }
    lead = ',';
  }
  yield Buffer.from(lead === ',' ? `]${after}` : `${lead}]${after}`);
}

/** Texts of JSON as a JSON array between `before` and `after`, in pieces of some size. */
export async function* jsonListBytes(
  before: string,
  texts: AsyncIterable<string>,
  after: string,
): AsyncGenerator<Buffer> {
  let piece = `${before}[`;
  let comma = '';
  for await (const text of texts) {
    piece += comma + text;
    comma = ',';
    if (piece.length < PIECE_CHARS) continue;
    yield Buffer.from(piece);
    piece = '';
  }
  yield Buffer.from(`${piece}]${after}`);
}

/** The length of {@link resultListBytes} with results of these lengths. */
export function resultListLength(before: string, lengths: readonly number[], after: string): number {
  const results = lengths.reduce((sum, length) => sum + length, 0);
  const commas = Math.max(0, lengths.length - 1);
  return Buffer.byteLength(before) + Buffer.byteLength(after) + results + commas + '[]'.length;
}

/** One SessionResult per line. */
export async function* resultLines(rows: readonly StoredResult[], blobs: BlobStore): AsyncGenerator<Buffer> {
  for (const row of rows) {
    yield* sessionResultBytes(row, blobs);
    yield Buffer.from('\n');
  }
}
