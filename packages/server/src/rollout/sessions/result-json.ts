import { FloeError, KIB } from '@floe-rl/core';
import type { SessionSummary } from '@floe-rl/core/schema';
import type { ResultWithSummary } from '../../store/index.ts';
import { withTrajectories } from './read-ahead.ts';
import type { TrajectoryReader } from './trajectory-reader.ts';

const CLOSE = Buffer.from('}');
const NULL = Buffer.from('null');

/**
 * Maximum number of characters of short texts that are joined into one chunk, because a write for each text would cost more than the text.
 */
const CHUNK_CHARS = 64 * KIB;

type StoredResult = Pick<
  ResultWithSummary,
  'session_id' | 'summary' | 'cursor' | 'trajectory_ref' | 'trajectory_bytes'
>;

/**
 * Returns the beginning of a SessionResult's JSON: the stored summary without its closing brace, the cursor, and the name of the field
 * `trajectory`. The value of this field follows.
 */
function head({ summary, cursor }: Pick<StoredResult, 'summary' | 'cursor'>): Buffer {
  return Buffer.from(`${summary.slice(0, -1)},"cursor":${cursor},"trajectory":`);
}

/**
 * Returns the summary of a result whose trajectory is unreadable. Its error is `corrupt_record`, with the session's own error in
 * `details.session_error`, and the sample is unusable.
 */
function withoutTrajectory(row: StoredResult, problem: FloeError): StoredResult {
  const { error, ...summary } = JSON.parse(row.summary) as SessionSummary;
  const details = { ...problem.details, session_error: error };
  const corrupt = { code: problem.code, message: problem.message, stage: null, details };
  const changed: SessionSummary = { ...summary, unusable: 'corrupt_record', error: corrupt };
  return { ...row, summary: JSON.stringify(changed), trajectory_ref: null };
}

/** Yields one SessionResult as JSON on one line. The trajectory's bytes are inserted exactly as the node delivered them. */
export function* sessionResultBytes(row: StoredResult, trajectory: Buffer | FloeError | null): Generator<Buffer> {
  yield head(trajectory instanceof FloeError ? withoutTrajectory(row, trajectory) : row);
  yield Buffer.isBuffer(trajectory) ? trajectory : NULL;
  yield CLOSE;
}

/**
 * Returns the length of {@link sessionResultBytes} in bytes, computed without reading the trajectory. The length is wrong when the
 * trajectory has become readable or unreadable since its last read.
 */
export function sessionResultLength(row: StoredResult, reader: TrajectoryReader): number {
  const problem = reader.lastError(row);
  if (problem !== undefined) return head(withoutTrajectory(row, problem)).length + NULL.length + CLOSE.length;
  return head(row).length + (row.trajectory_ref === null ? NULL.length : row.trajectory_bytes) + CLOSE.length;
}

/**
 * Yields the text `before`, a JSON array of SessionResults, and the text `after`. The first trajectory is read before the first bytes are
 * yielded, so that a store that fails makes the request fail instead of truncating the reply.
 */
export async function* resultListBytes(
  before: string,
  rows: Iterable<StoredResult> | AsyncIterable<StoredResult>,
  after: string,
  reader: TrajectoryReader,
): AsyncGenerator<Buffer> {
  let separator = `${before}[`;
  for await (const [row, trajectory] of withTrajectories(rows, reader)) {
    for (const bytes of sessionResultBytes(row, trajectory)) {
      if (separator !== '') yield Buffer.from(separator);
      separator = '';
      yield bytes;
    }
    separator = ',';
  }
  yield Buffer.from(separator === ',' ? `]${after}` : `${separator}]${after}`);
}

/**
 * Yields the text `before`, a JSON array of the given JSON texts, and the text `after`, in chunks of about {@link CHUNK_CHARS} characters.
 */
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

/** Yields the results as `application/x-ndjson`, one SessionResult per line. Reads the first trajectory first, like {@link resultListBytes}. */
export async function* resultLines(rows: readonly StoredResult[], reader: TrajectoryReader): AsyncGenerator<Buffer> {
  for await (const [row, trajectory] of withTrajectories(rows, reader)) {
    yield* sessionResultBytes(row, trajectory);
    yield Buffer.from('\n');
  }
}
