import { closeSync, existsSync, openSync, readSync } from 'node:fs';
import type Libsql from 'libsql';
import { SCHEMA_FORMAT, type SchemaDialect, schemaSql, wrongFormat } from '../sql/schema.ts';

/** First bytes of every SQLite file (https://www.sqlite.org/fileformat.html). */
const MAGIC = Buffer.from('SQLite format 3\0');
/** Position in bytes of the number `user_version` in an SQLite file (https://www.sqlite.org/fileformat.html). */
const USER_VERSION_OFFSET = 60;
const HEADER_BYTES = 64;

/**
 * The parts of the schema's SQL that are written differently for SQLite. Tables are `strict`: they refuse a value whose type is not the type
 * of its column.
 */
export const SQLITE_SCHEMA: SchemaDialect = {
  serial: 'integer primary key autoincrement',
  bigint: 'integer',
  double: 'real',
  bytewise: 'text',
  storage: ({ sqlite }) => (sqlite === undefined ? 'strict' : `strict, ${sqlite}`),
  countTasks: `create trigger task_added after insert on tasks begin
    insert into task_counts values (new.status, 1);
  end;
  create trigger task_changed after update of status on tasks begin
    insert into task_counts values (old.status, -1), (new.status, 1);
  end;
  create trigger task_removed after delete on tasks begin
    insert into task_counts values (old.status, -1);
  end;`,
  addUncollected: `create trigger result_added after insert on results begin
    insert into uncollected values (new.cursor, new.task_id, new.trainer,
      new.trajectory_bytes + new.completions_bytes + new.artifacts_bytes);
  end;`,
  recordGroupChanges: `create trigger batch_group_added after insert on batch_groups begin
    insert into batch_group_changes
      values (new.batch_id, new.state, new.reason, 1, new.sessions, new.resolved, new.sampled_tokens);
  end;
  create trigger batch_group_changed after update of state, reason, sessions, resolved, sampled_tokens on batch_groups begin
    insert into batch_group_changes values
      (old.batch_id, old.state, old.reason, -1, -old.sessions, -old.resolved, -old.sampled_tokens),
      (new.batch_id, new.state, new.reason, 1, new.sessions, new.resolved, new.sampled_tokens);
  end;`,
  sessionWords: `create virtual table session_words using fts5(
    words, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0'
  );`,
};

/**
 * Creates all tables if the database is empty. Locks the database meanwhile, because another server may be creating the tables at the same
 * time. If it fails, no table is created. Throws `setup_failed` when the database has another format.
 */
export function ensureTables(raw: Libsql.Database, path: string): void {
  if (readFormat(raw) === SCHEMA_FORMAT) return;
  raw.exec('begin immediate');
  try {
    const format = readFormat(raw);
    checkFormat(format, path);
    if (format === 0) raw.exec(`${schemaSql(SQLITE_SCHEMA)}; pragma user_version = ${SCHEMA_FORMAT}`);
    raw.exec('commit');
  } catch (error) {
    if (raw.inTransaction) raw.exec('rollback');
    throw error;
  }
}

/** Throws `setup_failed` for a database format that this version of floe cannot use. The format of an empty database is 0. */
export function checkFormat(format: number, path: string): void {
  if (format === 0 || format === SCHEMA_FORMAT) return;
  throw wrongFormat(path, format, 'move the file away, or start with an empty data directory');
}

/** Returns the format number of an open database, which is stored in SQLite's `user_version`. */
export function readFormat(raw: Libsql.Database): number {
  const [row] = raw.prepare('pragma user_version').all() as { user_version: number }[];
  return row?.user_version ?? 0;
}

/**
 * Returns the format number in the header of a database file; 0 when the file does not exist. The file is read without SQLite, which would
 * create a write-ahead log next to a file that is about to be refused. A format number that is still in a write-ahead log is not found;
 * {@link readFormat} finds it after the database is opened.
 */
export function readFormatOfFile(path: string): number {
  if (!existsSync(path)) return 0;
  const header = Buffer.alloc(HEADER_BYTES);
  const file = openSync(path, 'r');
  try {
    readSync(file, header, 0, HEADER_BYTES, 0);
  } finally {
    closeSync(file);
  }
  return header.subarray(0, MAGIC.length).equals(MAGIC) ? header.readUInt32BE(USER_VERSION_OFFSET) : 0;
}
