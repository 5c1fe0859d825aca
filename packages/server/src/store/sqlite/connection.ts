import { mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { createPrivateFile, FloeError, messageOf, PRIVATE_DIR_MODE, restrictToOwner } from '@floe-rl/core';
import { Kysely, type SqliteDatabase, SqliteDialect, type SqliteStatement } from 'kysely';
import Libsql from 'libsql';
import { type Database, isAdHoc, type QueryBuilder } from '../sql/database.ts';
import { checkFormat, ensureTables, readFormat, readFormatOfFile } from './schema.ts';

/**
 * Maximum time in milliseconds that a write waits for another process that has locked the database file, such as a backup. The write then
 * fails.
 */
const BUSY_TIMEOUT_MS = 5_000;

/**
 * Maximum number of compiled statements that are kept. There are about forty distinct statements; statements beyond this number are
 * compiled each time they run.
 */
const STATEMENT_CACHE_SIZE = 200;

/** Suffixes of the files of a database. SQLite creates the last three files next to the database with the same permissions. */
const SUFFIXES = ['', '-wal', '-shm', '-journal'];

export type SqliteConnection = {
  readonly kysely: QueryBuilder;
  readonly inTransaction: () => boolean;
};

/**
 * Opens a database file for writing, with a write-ahead log and full sync, so that a commit survives a power failure. Creates the tables if
 * the database is empty. Only the owner may read the files. If others may access the files of an existing database, their permissions are
 * restricted and `notify` is called with a notice. Throws `setup_failed` when the file cannot be used or has another format.
 */
export function openConnection(path: string, notify: (notice: string) => void = () => {}): SqliteConnection {
  return connect(path, notify, (raw) => {
    // The timeout is set first, because another server may be opening the same file.
    raw.exec(`pragma busy_timeout = ${BUSY_TIMEOUT_MS}; pragma synchronous = full; pragma foreign_keys = on`);
    checkFormat(readFormat(raw), path);
    raw.prepare('pragma journal_mode = wal').all();
    ensureTables(raw, path);
  });
}

/**
 * Opens a second connection to a database file, which can only read and never waits for the writer. Throws `setup_failed` when the file
 * cannot be used.
 */
export function openReader(path: string): SqliteConnection {
  return connect(
    path,
    () => {},
    (raw) => raw.exec(`pragma busy_timeout = ${BUSY_TIMEOUT_MS}; pragma query_only = on`),
  );
}

function connect(
  path: string,
  notify: (notice: string) => void,
  prepare: (raw: Libsql.Database) => void,
): SqliteConnection {
  let raw: Libsql.Database | null = null;
  try {
    if (path !== ':memory:') {
      mkdirSync(dirname(path), { recursive: true, mode: PRIVATE_DIR_MODE });
      checkFormat(readFormatOfFile(path), path);
      keepPrivate(path, notify);
    }
    raw = new Libsql(path);
    prepare(raw);
  } catch (cause) {
    raw?.close();
    if (FloeError.is(cause)) throw cause;
    const reason = messageOf(cause);
    throw new FloeError('setup_failed', `the database ${path} cannot be opened: ${reason}`, { path }, cause);
  }
  const opened = raw;
  return {
    kysely: new Kysely<Database>({ dialect: new SqliteDialect({ database: new CachingDatabase(opened) }) }),
    inTransaction: () => opened.inTransaction,
  };
}

/** Makes the database file, and with it the files that SQLite creates beside it, readable by its owner alone. */
function keepPrivate(path: string, notify: (notice: string) => void): void {
  createPrivateFile(path);
  for (const suffix of SUFFIXES) {
    const notice = restrictToOwner(`${path}${suffix}`);
    if (notice !== null) notify(notice);
  }
}

/** Database connection that keeps compiled statements for reuse, because compiling most statements takes longer than running them. */
class CachingDatabase implements SqliteDatabase {
  private readonly raw: Libsql.Database;
  private readonly statements = new Map<string, SqliteStatement>();

  constructor(raw: Libsql.Database) {
    this.raw = raw;
  }

  prepare(sql: string): SqliteStatement {
    const cached = this.statements.get(sql);
    if (cached !== undefined) return cached;
    const statement = this.raw.prepare(sql) as unknown as SqliteStatement;
    if (this.statements.size < STATEMENT_CACHE_SIZE && !isAdHoc(sql)) this.statements.set(sql, statement);
    return statement;
  }

  close(): void {
    this.statements.clear();
    this.raw.close();
  }
}
