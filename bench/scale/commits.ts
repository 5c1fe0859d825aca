// The floor of the rates of a server: transactions of one row each, which are as durable as floe's, without a server or any other work.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import Libsql from 'libsql';
import pg from 'pg';
import { inParallel } from '../child.ts';

/** Number of connections to PostgreSQL that commit at the same time. */
const CONNECTIONS = 12;
/** Contents of one row. It has about as many bytes as the row of a session. */
const ROW = 'x'.repeat(1_000);

/** Returns the transactions per second of PostgreSQL with this URL; of SQLite when it is `null`. */
export function commitRate(database: string | null, count: number): Promise<number> {
  return database === null ? sqliteRate(count) : postgresRate(database, count);
}

async function sqliteRate(count: number): Promise<number> {
  const dir = await mkdtemp(join(tmpdir(), 'floe-scale-commits-'));
  const database = new Libsql(join(dir, 'floor.db'));
  try {
    database.exec('pragma journal_mode = wal; pragma synchronous = full; create table floor (row text)');
    const insert = database.prepare('insert into floor values (?)');
    return await rateOf(count, 1, async () => insert.run(ROW));
  } finally {
    database.close();
    await rm(dir, { recursive: true, force: true });
  }
}

async function postgresRate(url: string, count: number): Promise<number> {
  const pool = new pg.Pool({ connectionString: url, max: CONNECTIONS });
  try {
    await pool.query('create table floor (row text)');
    return await rateOf(count, CONNECTIONS, () => pool.query('insert into floor values ($1)', [ROW]));
  } finally {
    await pool.end();
  }
}

async function rateOf(count: number, width: number, commit: () => Promise<unknown>): Promise<number> {
  await inParallel(Math.ceil(count / 10), width, commit);
  const startMs = systemClock.monotonicMs();
  await inParallel(count, width, commit);
  return count / ((systemClock.monotonicMs() - startMs) / 1000);
}
