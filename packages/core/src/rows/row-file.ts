import { open, readFile } from 'node:fs/promises';
import { MIB } from '../bytes.ts';
import { asFloeError, FloeError } from '../errors.ts';
import { parseJson } from '../parse.ts';
import { isRecord } from '../record.ts';

/** A row of a data set, and where it is, such as `rows.jsonl:3`, for messages. */
export type Row = { readonly where: string; readonly fields: Readonly<Record<string, unknown>> };

/** Maximum length of a line. A longer line indicates another format, such as a list of rows in one line. */
const MAX_LINE_BYTES = 64 * MIB;
const NEWLINE = 0x0a;
const SPACE = 0x20;

const PARQUET_HINT =
  'is Parquet; convert it: python3 -c \'import sys, pandas; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient="records", lines=True)\'';

/** A row that is not a JSON object. */
export type BadRow = { readonly where: string; readonly error: FloeError };

/**
 * Reads the rows of a file in UTF-8: JSON objects, one per line (`.jsonl`), or a JSON list of them (`.json`). Throws `setup_failed` for a file
 * that cannot be read, and `schema_violation` with the file and the row for a row that is not a JSON object.
 */
export async function* readRows(path: string): AsyncGenerator<Row> {
  for await (const row of readAllRows(path)) {
    if ('error' in row) throw row.error;
    yield row;
  }
}

/**
 * Reads the rows of a file like {@link readRows}. A row that is not a JSON object is yielded with its error instead of throwing, so that the
 * caller can use the other rows.
 */
export async function* readAllRows(path: string): AsyncGenerator<Row | BadRow> {
  if (path.endsWith('.parquet')) throw new FloeError('unsupported', `${path} ${PARQUET_HINT}`, { file: path });
  yield* path.endsWith('.json') ? rowsOfList(path) : rowsOfLines(path);
}

async function* rowsOfList(path: string): AsyncGenerator<Row | BadRow> {
  const text = await readFile(path).catch((cause: Error) => {
    throw unreadable(path, cause);
  });
  const list = parsed(text, path);
  if (!Array.isArray(list)) throw invalidRow(path, 'is not a list of rows; name a file with one row per line .jsonl');
  for (const [index, value] of list.entries()) {
    const where = `${path}[${index}]`;
    yield rowOrError(where, () => rowOf(value, where));
  }
}

async function* rowsOfLines(path: string): AsyncGenerator<Row | BadRow> {
  try {
    const file = await open(path);
    let number = 0;
    for await (const line of linesOf(file.createReadStream(), path)) {
      number += 1;
      const where = `${path}:${number}`;
      if (line.some((byte) => byte > SPACE)) yield rowOrError(where, () => rowOf(parsed(line, where), where));
    }
  } catch (thrown) {
    throw FloeError.is(thrown) ? thrown : unreadable(path, thrown as Error);
  }
}

/**
 * Yields the lines of a file without their newlines. Only a newline ends a line. Node's own line reader also splits at other line separators
 * of Unicode, which may be inside a JSON text. Throws `schema_violation` for a line that is too long.
 */
async function* linesOf(chunks: AsyncIterable<Buffer>, path: string): AsyncGenerator<Buffer> {
  let pieces: Buffer[] = [];
  let bytes = 0;
  let number = 1;
  for await (const chunk of chunks) {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      yield Buffer.concat([...pieces, chunk.subarray(start, end)]);
      pieces = [];
      bytes = 0;
      number += 1;
      start = end + 1;
    }
    bytes += chunk.length - start;
    if (bytes > MAX_LINE_BYTES) throw invalidRow(`${path}:${number}`, `is longer than ${MAX_LINE_BYTES / MIB} MiB`);
    pieces.push(chunk.subarray(start));
  }
  if (bytes > 0) yield Buffer.concat(pieces);
}

function rowOrError(where: string, read: () => Row): Row | BadRow {
  try {
    return read();
  } catch (thrown) {
    if (!FloeError.is(thrown)) throw thrown;
    return { where, error: thrown };
  }
}

function rowOf(value: unknown, where: string): Row {
  if (!isRecord(value)) throw invalidRow(where, 'is not an object');
  return { where, fields: value };
}

function parsed(text: Buffer, where: string): unknown {
  try {
    return parseJson(text);
  } catch (cause) {
    throw invalidRow(where, `is not JSON: ${asFloeError(cause).message}`);
  }
}

function unreadable(path: string, cause: Error): FloeError {
  return new FloeError('setup_failed', `cannot read ${path}: ${cause.message}`, { file: path }, cause);
}

/** Returns the error for a row that cannot be a task. `problem` names the field. */
export function invalidRow(where: string, problem: string, field: string | null = null): FloeError {
  return new FloeError('schema_violation', `${where}: ${problem}`, { row: where, field });
}
