import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError, parseAs, parseJson, systemError } from '@floe-rl/core';
import { readRows } from '@floe-rl/core/rows';
import type { TableRow } from './columns.ts';
import { loadImages } from './images.ts';
import { MANIFEST_FILE, type Manifest, manifestSchema, type SetFile } from './manifest.ts';
import { parquetRows } from './parquet.ts';
import { parseSetRow, type SetRow } from './set-row.ts';
import { DATA_FOLDER, sessionsFileOf } from './shards.ts';
import { SESSION_COLUMNS, sessionValue, TRACE_COLUMNS } from './tables.ts';

/**
 * Reads sessions from a set in the format `sessions`, or from a file of results: JSON lines, or a JSON list. Images have URLs with their data
 * instead of files. Every file of a set is compared with its size and digest first, and every row is checked. Throws `corrupt_record` for a
 * set that is not complete or was changed, and `schema_violation` with file, line and field for a wrong row. Throws `setup_failed` for a file
 * that cannot be read.
 */
export async function* readSessions(path: string): AsyncGenerator<SetRow> {
  const info = await stat(path).catch((thrown: unknown) => {
    throw systemError(thrown, { path, verb: 'read' }) ?? thrown;
  });
  if (!info.isDirectory()) {
    for await (const { where, fields } of readRows(path)) yield parseSetRow(fields, where);
    return;
  }
  const manifest = await readManifest(path);
  for (const file of manifest.files) await checkFile(path, file);
  for (const file of manifest.files.filter(({ path: name }) => name.startsWith(`${DATA_FOLDER}/`))) {
    const rows = manifest.encoding === 'parquet' ? sessionsOfTables(path, file) : sessionsOfLines(path, file);
    for await (const row of rows) yield await withImages(path, row);
  }
}

/** Whether a folder is a set whose sessions {@link readSessions} reads. */
export async function isSessionSet(dir: string): Promise<boolean> {
  const text = await readFile(join(dir, MANIFEST_FILE)).catch(() => null);
  if (text === null) return false;
  const manifest: unknown = parseJson(text);
  return typeof manifest === 'object' && manifest !== null && 'format' in manifest && manifest.format === 'sessions';
}

async function readManifest(dir: string): Promise<Manifest> {
  const path = join(dir, MANIFEST_FILE);
  const text = await readFile(path).catch((cause: unknown) => {
    const message = `${dir} is not a complete set: ${MANIFEST_FILE}, which an export writes last, cannot be read`;
    throw new FloeError('corrupt_record', message, { path }, cause);
  });
  const manifest = parseAs(manifestSchema, parseJson(text), path);
  if (manifest.format === 'sessions') return manifest;
  const message = `${dir} has the format ${manifest.format}, which does not contain whole sessions; only sets of the format sessions can be read`;
  throw new FloeError('unsupported', message, { path });
}

/** Throws `corrupt_record` when a file of a set is missing, or differs from the file that was written. */
async function checkFile(dir: string, { path, bytes, sha256 }: SetFile): Promise<void> {
  const place = join(dir, path);
  const hash = createHash('sha256');
  let size = 0;
  try {
    for await (const chunk of createReadStream(place)) {
      hash.update(chunk as Buffer);
      size += (chunk as Buffer).length;
    }
  } catch (thrown) {
    const reason = systemError(thrown, { path: place, verb: 'read' })?.message ?? String(thrown);
    throw new FloeError('corrupt_record', `a file of the set is missing: ${reason}`, { file: path }, thrown);
  }
  if (size === bytes && hash.digest('hex') === sha256) return;
  const message = `${place} has ${size} bytes or other content than the ${bytes} bytes that were exported; export the set once more`;
  throw new FloeError('corrupt_record', message, { file: path });
}

async function* sessionsOfLines(dir: string, { path }: SetFile): AsyncGenerator<SetRow> {
  for await (const { where, fields } of readRows(join(dir, path))) yield parseSetRow(fields, where);
}

/** Reads a file of traces and the file of their sessions together. */
async function* sessionsOfTables(dir: string, { path }: SetFile): AsyncGenerator<SetRow> {
  const sessionsPath = join(dir, sessionsFileOf(path));
  const tracesPath = join(dir, path);
  const traces = parquetRows(tracesPath, await readFile(tracesPath), TRACE_COLUMNS);
  let number = 0;
  for await (const session of parquetRows(sessionsPath, await readFile(sessionsPath), SESSION_COLUMNS)) {
    const own: TableRow[] = [];
    const count = Number(session.traces);
    while (own.length < count) {
      const { value } = await traces.next();
      if (value === undefined || value.session_id !== session.session_id) {
        const message = `${tracesPath} lacks a trace of the session ${session.session_id}`;
        throw new FloeError('corrupt_record', message, { file: path });
      }
      own.push(value);
    }
    yield parseSetRow(sessionValue(session, own), `${sessionsPath}:${++number}`);
  }
}

async function withImages(dir: string, row: SetRow): Promise<SetRow> {
  const { trajectory } = row;
  if (trajectory === null || Object.keys(trajectory.images).length === 0) return row;
  return { ...row, trajectory: { ...trajectory, images: await loadImages(dir, trajectory.images) } };
}
