import { readdir, readFile, stat } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { asFloeError, FloeError, parseJson, systemError } from '@floe-rl/core';
import { readRows } from '@floe-rl/core/rows';
import { isSessionSet, readSessions } from '../session-sets/read-set.ts';
import { ATIF_READER } from './atif.ts';
import { FLOE_READER } from './floe.ts';
import { INSPECT_READER, inspectRecording } from './inspect.ts';
import { POLAR_READER } from './polar.ts';
import type { Recording, RecordingReader, RecordingSource } from './recording.ts';
import { ZipFile } from './zip.ts';

const READERS: readonly RecordingReader[] = [FLOE_READER, POLAR_READER, ATIF_READER, INSPECT_READER];

/** Logs of Inspect: ZIP files with an entry for each sample. */
const INSPECT_EXTENSION = '.eval';

const EXTENSIONS: ReadonlySet<string> = new Set(['.json', '.jsonl', '.ndjson', INSPECT_EXTENSION]);

const KNOWN = 'it is no session of floe, Polar, Harbor (ATIF) or Inspect, and no list of them';

/**
 * Reads the ended sessions in files, one at a time. A folder may be a data set. In any other folder, all files with a known extension are
 * read, and files without a session are given to `skip`. Throws `setup_failed` for a file that cannot be read, and `corrupt_record` for a data
 * set that is not complete. Throws `schema_violation` with the file and the line for a broken file, and for a file among `paths` that has no
 * session.
 */
export async function* readRecordings(
  paths: readonly string[],
  skip: (file: string) => void,
): AsyncGenerator<Recording> {
  for (const path of paths) {
    if (!(await isFolder(path))) yield* recordingsOf(path, null);
    else if (await isSessionSet(path)) yield* recordingsOfSet(path);
    else for (const file of await filesBelow(path)) yield* recordingsOf(file, skip);
  }
}

async function isFolder(path: string): Promise<boolean> {
  return (await onFile(() => stat(path))).isDirectory();
}

/** Yields the sessions of a data set in JSON lines or Parquet, with their images. */
async function* recordingsOfSet(folder: string): AsyncGenerator<Recording> {
  const modifiedMs = Math.floor((await onFile(() => stat(folder))).mtimeMs);
  for await (const row of readSessions(folder)) {
    const where = `${folder}: ${row.session_id}`;
    yield* FLOE_READER.read(row, { where, file: folder, modifiedMs }) ?? [];
  }
}

async function filesBelow(folder: string): Promise<string[]> {
  const names = await onFile(() => readdir(folder, { recursive: true }));
  const known = names.filter((name) => EXTENSIONS.has(extname(name))).sort();
  const files: string[] = [];
  for (const name of known) if ((await onFile(() => stat(join(folder, name)))).isFile()) files.push(join(folder, name));
  return files;
}

/** Yields the sessions of one file. A file without a session is given to `skip`. When `skip` is `null`, such a file is an error. */
async function* recordingsOf(file: string, skip: ((file: string) => void) | null): AsyncGenerator<Recording> {
  const modifiedMs = Math.floor((await onFile(() => stat(file))).mtimeMs);
  if (extname(file) === INSPECT_EXTENSION) {
    yield* samplesOf(file, modifiedMs);
    return;
  }
  let isFirst = true;
  for await (const { value, where } of valuesOf(file)) {
    const found = read(value, { where, file, modifiedMs });
    if (found === null) {
      // A file whose first value is a session must contain nothing but sessions.
      if (skip === null || !isFirst) throw new FloeError('schema_violation', `${where}: ${KNOWN}`, { where });
      skip(file);
      return;
    }
    isFirst = false;
    yield* found;
  }
  if (!isFirst) return;
  if (skip === null) throw new FloeError('schema_violation', `${file} is empty`, { where: file });
  skip(file);
}

/**
 * Yields the samples of a log of Inspect. In the log of an evaluation that did not end, another entry has the description of the evaluation.
 */
async function* samplesOf(file: string, modifiedMs: number): AsyncGenerator<Recording> {
  const zip = await onFile(() => ZipFile.open(file));
  try {
    const head = zip.entries.get('header.json') ?? zip.entries.get('_journal/start.json');
    if (head === undefined) throw new FloeError('schema_violation', `${file}: has no header.json`, { where: file });
    const evaluation = parsed(await zip.read(head), `${file}:${head.name}`);
    for (const entry of zip.entries.values()) {
      if (!/^samples\/.*\.json$/.test(entry.name)) continue;
      const where = `${file}:${entry.name}`;
      const sample = parsed(await zip.read(entry), where);
      yield inspectRecording(Object(evaluation).eval, sample, { where, file, modifiedMs }, '');
    }
  } finally {
    await zip.close();
  }
}

function read(value: unknown, source: RecordingSource): readonly Recording[] | null {
  for (const reader of READERS) {
    const found = reader.read(value, source);
    if (found !== null) return found;
  }
  return null;
}

async function* valuesOf(file: string): AsyncGenerator<{ value: unknown; where: string }> {
  if (extname(file) !== '.json') {
    for await (const { fields, where } of readRows(file)) yield { value: fields, where };
    return;
  }
  const text = await onFile(() => readFile(file));
  yield { value: parsed(text, file), where: file };
}

function parsed(text: Buffer, place: string): unknown {
  try {
    return parseJson(text);
  } catch (thrown) {
    const { message } = asFloeError(thrown);
    const where = `${place}:${lineOf(text.toString(), message)}`;
    throw new FloeError('schema_violation', `${where}: is not JSON: ${message}`, { where }, thrown);
  }
}

/** Returns the line of a syntax error of JSON. The error's message has the position, except when the error is at the end of the text. */
function lineOf(text: string, message: string): number {
  const [, position] = /at position (\d+)/.exec(message) ?? [];
  return text.slice(0, position === undefined ? text.length : Number(position)).split('\n').length;
}

/** Runs `work` on a file. Throws `setup_failed` when the file cannot be read. */
async function onFile<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (thrown) {
    throw systemError(thrown) ?? thrown;
  }
}
