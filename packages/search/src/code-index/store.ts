import { randomUUID } from 'node:crypto';
import {
  accessSync,
  constants,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
} from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { GIB, systemClock, systemError } from '@floe-rl/core';
import Libsql from 'libsql';
import { splitNames } from '../search/words.ts';
import type { ParsedCode } from './parse.ts';
import { PART_LINES, rowOfPart } from './parts.ts';
import { CodeSearch } from './query.ts';

/** Format of the tables; files of other formats are not read. */
const FORMAT = 1;
/** Maximum size of all indexes in bytes. Beyond it, the indexes that were not used for longest are removed. */
const MAX_CACHE_BYTES = 2 * GIB;
/** Age in milliseconds above which an unfinished file counts as abandoned. */
const LEFT_AFTER_MS = 3_600_000;

const TABLES = `
  create table files (number integer primary key, path text not null unique, digest text not null, text text not null);
  create table definitions (name text not null, path text not null, kind text not null, file integer not null, line integer not null, last_line integer not null);
  create index definitions_by_name on definitions (name);
  create index definitions_by_lower_name on definitions (lower(name));
  create index definitions_of_file on definitions (file);
  create table uses (name text not null, file integer not null, line integer not null);
  create index uses_by_name on uses (name);
  create index uses_of_file on uses (file);
  create virtual table words using fts5(text, path, content='', contentless_delete=1, tokenize='porter unicode61');
`;

/** Indexes of code in a directory of the host. Each index is one file, which never changes. Its name contains a digest of the indexed files. */
export class CodeStore {
  private readonly folder: string;

  constructor(folder: string) {
    this.folder = folder;
  }

  /** Throws an error of the file system when no index can be made in the directory. */
  requireWritable(): void {
    mkdirSync(this.folder, { recursive: true, mode: 0o700 });
    accessSync(this.folder, constants.W_OK);
  }

  has(key: string): boolean {
    return existsSync(this.pathOf(key));
  }

  /** Opens an index for reading; `null` when there is no readable index with this key. */
  open(key: string): CodeSearch | null {
    if (!this.has(key)) return null;
    const path = this.pathOf(key);
    try {
      // The modification time of the file records the last use, which decides which files are removed.
      const seconds = systemClock.nowMs() / 1000;
      utimesSync(path, seconds, seconds);
      return openedForReading(path);
    } catch {
      // Another process has removed the file, or it is damaged. The caller makes the index once more.
      return null;
    }
  }

  /** Starts a new index: a copy of the index with the key `base`, or an empty index when `base` is `null`. */
  create(base: string | null): CodeWriter {
    try {
      mkdirSync(this.folder, { recursive: true, mode: 0o700 });
      this.removeOld();
      const path = join(this.folder, `${randomUUID()}.unfinished`);
      if (base !== null) copyFileSync(this.pathOf(base), path, constants.COPYFILE_FICLONE);
      return new CodeWriter(path, base === null);
    } catch (error) {
      throw (
        systemError(error, {
          remedy: 'set plugins.services.code_index_dir of the node to a directory that floe can write to',
        }) ?? error
      );
    }
  }

  /** Names the file of a finished index by its key, and opens the index. */
  publish({ path }: CodeWriter, key: string): CodeSearch {
    renameSync(path, this.pathOf(key));
    return openedForReading(this.pathOf(key));
  }

  private pathOf(key: string): string {
    return join(this.folder, `${key}.v${FORMAT}.db`);
  }

  /** Removes the indexes that were not used for longest, and unfinished files of processes that ended while they wrote. */
  private removeOld(): void {
    const files = readdirSync(this.folder).flatMap((name) => {
      const path = join(this.folder, name);
      const stat = statSync(path, { throwIfNoEntry: false });
      return stat === undefined ? [] : [{ path, bytes: stat.size, usedMs: stat.mtimeMs }];
    });
    const nowMs = systemClock.nowMs();
    let total = files.reduce((sum, { bytes }) => sum + bytes, 0);
    for (const { path, bytes, usedMs } of files.sort((a, b) => a.usedMs - b.usedMs)) {
      const isLeft = path.endsWith('.unfinished') && nowMs - usedMs > LEFT_AFTER_MS;
      if (total <= MAX_CACHE_BYTES && !isLeft) continue;
      rmSync(path, { force: true });
      total -= bytes;
    }
  }
}

function openedForReading(path: string): CodeSearch {
  const search = new CodeSearch(new Libsql(`${pathToFileURL(path).href}?mode=ro&immutable=1`));
  search.digests();
  return search;
}

/** Writes one index. */
export class CodeWriter {
  readonly path: string;
  private readonly raw: Libsql.Database;
  private files: number;

  /** With `isNew`, `path` is a file that does not exist yet; otherwise it is a copy of an index. */
  constructor(path: string, isNew: boolean) {
    this.path = path;
    this.raw = new Libsql(path);
    this.raw.exec(`pragma journal_mode = off; pragma synchronous = off; ${isNew ? TABLES : ''} begin`);
    const [last] = this.raw.prepare('select max(number) as number from files').all() as { number: number | null }[];
    this.files = last?.number ?? 0;
  }

  add({ path, digest }: { readonly path: string; readonly digest: string }, text: string, parsed: ParsedCode): void {
    const { definitions, references } = parsed;
    const file = ++this.files;
    this.raw.prepare('insert into files values (?, ?, ?, ?)').run(file, path, digest, text);
    // One statement inserts all entries of a file, because a call of the database takes longer than inserting an entry.
    this.raw
      .prepare(
        'insert into definitions select value ->> 0, value ->> 1, value ->> 2, ?, value ->> 3, value ->> 4 from json_each(?)',
      )
      .run(file, JSON.stringify(definitions.map((one) => [one.name, one.path, one.kind, one.line, one.lastLine])));
    this.raw
      .prepare('insert into uses select value ->> 0, ?, value ->> 1 from json_each(?)')
      .run(file, JSON.stringify(references.map(({ name, line }) => [name, line])));
    const lines = text.split('\n');
    const insert = this.raw.prepare('insert into words (rowid, text, path) values (?, ?, ?)');
    for (let start = 0; start < lines.length; start += PART_LINES) {
      insert.run(
        rowOfPart(file, start),
        splitNames(lines.slice(start, start + PART_LINES).join('\n')),
        splitNames(path),
      );
    }
  }

  /** Removes a file from the index if the index has it. */
  remove(path: string): void {
    const [row] = this.raw.prepare('select number from files where path = ?').all(path) as { number: number }[];
    if (row === undefined) return;
    const { number } = row;
    this.raw.prepare('delete from definitions where file = ?').run(number);
    this.raw.prepare('delete from uses where file = ?').run(number);
    this.raw
      .prepare('delete from words where rowid between ? and ?')
      .run(rowOfPart(number, 0), rowOfPart(number + 1, 0) - 1);
    this.raw.prepare('delete from files where number = ?').run(number);
  }

  /** Writes everything to the file. */
  finish(): void {
    this.raw.exec('commit');
    this.raw.close();
  }

  /** Removes the unfinished file. */
  discard(): void {
    if (this.raw.open) this.raw.close();
    rmSync(this.path, { force: true });
  }
}
