import { MIB } from '@floe-rl/core';
import { rowBytes, type TableRow } from './columns.ts';
import { encodeParquet } from './parquet.ts';
import type { SetFolder } from './set-folder.ts';
import type { SetRow } from './set-row.ts';
import { SESSION_COLUMNS, sessionCells, TRACE_COLUMNS, traceCells } from './tables.ts';

/** Size in bytes at which a file is complete, before compression. It limits the memory of an export and of a reader. */
export const SHARD_BYTES = 64 * MIB;

/** Number of characters of lines that are collected before they are written. */
const BUFFER_CHARS = MIB;

/** Folder of the rows that `datasets` reads by default, and of the table of sessions of a set in Parquet. */
export const DATA_FOLDER = 'data';
export const SESSIONS_FOLDER = 'sessions';

/** Returns the name of a file as `datasets` expects it, such as `data/train-00000-of-00002.jsonl`. */
function shardName(folder: string, split: string, index: number, count: number, extension: string): string {
  const digits = (value: number): string => String(value).padStart(5, '0');
  return `${folder}/${split}-${digits(index)}-of-${digits(count)}.${extension}`;
}

/** Names the files of all splits by their final number, which is known only when all files are written. */
async function nameShards(
  folder: SetFolder,
  place: string,
  shards: ReadonlyMap<string, number>,
  extension: string,
): Promise<void> {
  for (const [split, count] of shards) {
    for (let index = 0; index < count; index++) {
      const from = shardName(place, split, index, 0, extension);
      await folder.close(from);
      await folder.rename(from, shardName(place, split, index, count, extension));
    }
  }
}

/** Writes rows as lines of JSON, with several files for each split. */
export class LineShards {
  private readonly folder: SetFolder;
  private readonly shardBytes: number;
  private readonly splits = new Map<string, { text: string; rows: number; bytes: number; index: number }>();

  constructor(folder: SetFolder, shardBytes: number) {
    this.folder = folder;
    this.shardBytes = shardBytes;
  }

  /** Appends one row. `line` is its text without a newline. */
  async write(split: string, line: string): Promise<void> {
    const shard = this.splits.get(split) ?? { text: '', rows: 0, bytes: 0, index: 0 };
    this.splits.set(split, shard);
    if (shard.bytes >= this.shardBytes) {
      await this.flush(split);
      shard.index++;
      shard.bytes = 0;
    }
    shard.text += `${line}\n`;
    shard.rows++;
    shard.bytes += line.length;
    if (shard.text.length >= BUFFER_CHARS) await this.flush(split);
  }

  private async flush(split: string): Promise<void> {
    const shard = this.splits.get(split);
    if (shard === undefined || shard.rows === 0) return;
    const { text, rows } = shard;
    shard.text = '';
    shard.rows = 0;
    await this.folder.write(shardName(DATA_FOLDER, split, shard.index, 0, 'jsonl'), text, rows);
  }

  async finish(): Promise<void> {
    for (const split of this.splits.keys()) await this.flush(split);
    const counts = new Map([...this.splits].map(([split, { index }]) => [split, index + 1]));
    await nameShards(this.folder, DATA_FOLDER, counts, 'jsonl');
  }
}

type PendingTables = { sessions: TableRow[]; traces: TableRow[]; bytes: number; index: number };

/** Writes sessions in Parquet. Files of the two tables with the same number have the same sessions. */
export class ParquetShards {
  private readonly folder: SetFolder;
  private readonly shardBytes: number;
  private readonly splits = new Map<string, PendingTables>();

  constructor(folder: SetFolder, shardBytes: number) {
    this.folder = folder;
    this.shardBytes = shardBytes;
  }

  async write(split: string, row: SetRow): Promise<void> {
    const pending = this.splits.get(split) ?? { sessions: [], traces: [], bytes: 0, index: 0 };
    this.splits.set(split, pending);
    const session = sessionCells(row);
    const traces = traceCells(row);
    pending.sessions.push(session);
    pending.traces.push(...traces);
    pending.bytes += rowBytes(SESSION_COLUMNS, session);
    for (const trace of traces) pending.bytes += rowBytes(TRACE_COLUMNS, trace);
    const all = [...this.splits].sort(([, a], [, b]) => b.bytes - a.bytes);
    const [largest] = all;
    if (largest !== undefined && all.reduce((sum, [, { bytes }]) => sum + bytes, 0) >= this.shardBytes) {
      await this.flush(...largest);
    }
  }

  private async flush(split: string, pending: PendingTables): Promise<void> {
    if (pending.sessions.length === 0) return;
    const { sessions, traces, index } = pending;
    pending.sessions = [];
    pending.traces = [];
    pending.bytes = 0;
    pending.index++;
    const tables = [
      [DATA_FOLDER, TRACE_COLUMNS, traces],
      [SESSIONS_FOLDER, SESSION_COLUMNS, sessions],
    ] as const;
    for (const [place, columns, rows] of tables) {
      const path = shardName(place, split, index, 0, 'parquet');
      await this.folder.write(path, await encodeParquet(columns, rows), rows.length);
      await this.folder.close(path);
    }
  }

  async finish(): Promise<void> {
    for (const [split, pending] of this.splits) await this.flush(split, pending);
    const counts = new Map([...this.splits].map(([split, { index }]) => [split, index]));
    for (const place of [DATA_FOLDER, SESSIONS_FOLDER]) await nameShards(this.folder, place, counts, 'parquet');
  }
}

/** Returns the shard of the table of sessions that belongs to a file of traces. */
export function sessionsFileOf(path: string): string {
  return `${SESSIONS_FOLDER}/${path.slice(DATA_FOLDER.length + 1)}`;
}
