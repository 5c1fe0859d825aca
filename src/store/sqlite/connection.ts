import { mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { Kysely, type SqliteDatabase, SqliteDialect, type SqliteStatement } from 'kysely';
import Libsql from 'libsql';
import { FloeError } from '../../core/errors.ts';
import type { Database } from '../sql/tables.ts';
import { MIGRATIONS } from './migrations.ts';

/** Another process that holds the file (a backup, say) gets this long before a write fails. */
const BUSY_TIMEOUT_MS = 5_000;

/** Distinct statements are about forty; what comes beyond the limit is compiled anew each time. */
const STATEMENT_CACHE_SIZE = 200;

export type SqliteConnection = {
  readonly kysely: Kysely<Database>;
  readonly inTransaction: () => boolean;
};

/**
 * Opens the file with write-ahead log and full sync, so that a commit survives a power cut, and brings it to the newest
 * migration. Throws `setup_failed` when the file cannot be used or was written by a newer floe.
 */
export function openConnection(path: string): SqliteConnection {
  return connect(path, (raw) => {
    raw.prepare('pragma journal_mode = wal').all();
    raw.exec(`pragma busy_timeout = ${BUSY_TIMEOUT_MS}; pragma synchronous = full; pragma foreign_keys = on`);
    migrate(raw);
  });
}

/** A second connection to an opened file, for looking only: it never waits for the writer. Throws `setup_failed`. */
export function openReader(path: string): SqliteConnection {
  return connect(path, (raw) => raw.exec(`pragma busy_timeout = ${BUSY_TIMEOUT_MS}; pragma query_only = on`));
}

function connect(path: string, prepare: (raw: Libsql.Database) => void): SqliteConnection {
  let raw: Libsql.Database | null = null;
  try {
    if (path !== ':memory:') mkdirSync(dirname(path), { recursive: true });
    raw = new Libsql(path);
    prepare(raw);
  } catch (cause) {
    raw?.close();
    if (FloeError.is(cause)) throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new FloeError('setup_failed', `the database ${path} cannot be opened: ${reason}`, { path }, cause);
  }
  const opened = raw;
  return {
    kysely: new Kysely<Database>({ dialect: new SqliteDialect({ database: new CachingDatabase(opened) }) }),
    inTransaction: () => opened.inTransaction,
  };
}

function migrate(raw: Libsql.Database): void {
  const [row] = raw.prepare('pragma user_version').all() as { user_version: number }[];
  const current = row?.user_version ?? 0;
  const newest = MIGRATIONS.at(-1)?.number ?? 0;
  if (current > newest) {
    throw new FloeError(
      'setup_failed',
      `the database has version ${current} and this floe knows ${newest}: run a newer floe`,
    );
  }
  for (const migration of MIGRATIONS.filter(({ number }) => number > current)) {
    raw.exec(`begin immediate; ${migration.sql}; pragma user_version = ${migration.number}; commit`);
  }
}

/** Keeps compiled statements: compiling costs more than running most of them. */
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
    if (this.statements.size < STATEMENT_CACHE_SIZE) this.statements.set(sql, statement);
    return statement;
  }

  close(): void {
    this.statements.clear();
    this.raw.close();
  }
}
