import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import Libsql from 'libsql';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { openStore, SqliteStore } from '../../src/store/index.ts';
import { describeStore } from './store-contract.ts';
import { addSessions, taskRow } from './store-rows.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'floe-store-'));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await rm(directory, { recursive: true, force: true });
});

describeStore('SqliteStore in a file', async () => SqliteStore.open(join(directory, 'nested', 'floe.db')));
describeStore('SqliteStore in memory', async () => SqliteStore.open(':memory:'));

describe('SqliteStore', () => {
  it('has the committed rows after the file is reopened', async () => {
    const path = join(directory, 'floe.db');
    const first = SqliteStore.open(path);
    await first.transaction((tables) => tables.tasks.insert(taskRow('t1')));
    await first.close();
    const second = SqliteStore.open(path);
    expect(await second.transaction((tables) => tables.tasks.get('t1'))).toMatchObject(taskRow('t1'));
    await second.close();
  });

  it('shares one file with another store', async () => {
    const path = join(directory, 'floe.db');
    const [first, second] = [SqliteStore.open(path), SqliteStore.open(path)];
    await first.transaction((tables) => addSessions(tables, 'a', ['a0']));
    const claim = {
      limit: 5,
      nodeId: 'n',
      trainer: 'default',
      order: 'fifo' as const,
      nowMs: 1,
      leaseExpiresMs: 2,
      updatedAt: '2026-01-01T00:00:00Z',
    };
    expect(await second.transaction((tables) => tables.sessions.claim(claim))).toHaveLength(1);
    expect(await first.transaction((tables) => tables.sessions.claim(claim))).toEqual([]);
    await first.close();
    await second.close();
  });

  it('opens an empty file in which another server creates the tables at the same moment', async () => {
    const path = join(directory, 'floe.db');
    const others: SqliteStore[] = [];
    const exec = Libsql.prototype.exec;
    vi.spyOn(Libsql.prototype, 'exec').mockImplementation(function (this: Libsql.Database, sql) {
      // The other server opens the file when the first one has found it empty, and before the first one creates the tables.
      if (sql.startsWith('begin immediate') && others.length === 0) {
        vi.mocked(Libsql.prototype.exec).mockRestore();
        others.push(SqliteStore.open(path));
      }
      return exec.call(this, sql);
    });
    const stores = [SqliteStore.open(path), ...others];
    expect(stores).toHaveLength(2);
    await stores[0]?.transaction((tables) => tables.tasks.insert(taskRow('t1')));
    expect(await stores[1]?.read((tables) => tables.tasks.get('t1'))).toMatchObject(taskRow('t1'));
    for (const store of stores) await store.close();
  });

  it('waits for another process that has locked the file while it opens it', async () => {
    const path = join(directory, 'floe.db');
    const timeouts: unknown[] = [];
    const prepare = Libsql.prototype.prepare;
    vi.spyOn(Libsql.prototype, 'prepare').mockImplementation(function (this: Libsql.Database, sql) {
      if (sql.startsWith('pragma journal_mode')) timeouts.push(...prepare.call(this, 'pragma busy_timeout').all([]));
      return prepare.call(this, sql);
    });
    await SqliteStore.open(path).close();
    expect(timeouts).toEqual([{ timeout: 5_000 }]);
  });

  it('uses the write-ahead log', async () => {
    const path = join(directory, 'floe.db');
    await SqliteStore.open(path).close();
    const raw = new Libsql(path);
    expect(raw.prepare('pragma journal_mode').all()).toEqual([{ journal_mode: 'wal' }]);
    raw.close();
  });

  it('refuses a file that is not a database, and does not change it', async () => {
    const path = join(directory, 'floe.db');
    const text = 'this is not a database, it is a text of some length'.repeat(50);
    await writeFile(path, text);
    expect(() => SqliteStore.open(path)).toThrow(expect.objectContaining({ code: 'setup_failed' }));
    expect(await readFile(path, 'utf8')).toBe(text);
  });
});

describe('the statements that run for every request for a batch', () => {
  it('read neither all rows of the stream nor all queued sessions', async () => {
    const path = join(directory, 'floe.db');
    const prepared = vi.spyOn(Libsql.prototype, 'prepare');
    const store = SqliteStore.open(path);
    await store.read(async ({ batches }) => {
      await batches.countUnsampledRows('b');
      await batches.queuedSessions('b');
    });
    const statements = prepared.mock.calls.map(([sql]) => sql).filter((sql) => sql.includes('batch_'));
    prepared.mockRestore();
    const raw = new Libsql(path);
    const plans = statements.map((sql) => {
      const values = Array.from({ length: sql.split('?').length - 1 }, () => 'b');
      return (raw.prepare(`explain query plan ${sql}`).all(...values) as { detail: string }[]).map(
        ({ detail }) => detail,
      );
    });
    raw.close();
    await store.close();
    expect(plans).toEqual([
      ['SEARCH batch_rows USING INDEX batch_rows_unsampled (batch_id=?)'],
      [
        'SEARCH batch_groups USING INDEX batch_groups_by_state (batch_id=? AND state=?)',
        'SEARCH sessions USING COVERING INDEX sessions_waiting (task_id=?)',
      ],
    ]);
  });
});

describe('a database file with another format', () => {
  /** Creates a database file whose tables have the format version `format`, and closes it. Returns the bytes of the file. */
  async function createFile(path: string, format: number): Promise<Buffer> {
    const raw = new Libsql(path);
    raw.exec(`
      create table tasks (order_no integer primary key autoincrement, task_id text not null unique, digest text not null) strict;
      create table sessions (queue_order integer primary key autoincrement, session_id text not null unique) strict;
      insert into tasks values (1, 'old', 'd');
      pragma user_version = ${format};
    `);
    raw.close();
    return readFile(path);
  }

  it('is refused, and not changed, when the format was never released', async () => {
    const path = join(directory, 'floe.db');
    const before = await createFile(path, 5);
    expect(() => SqliteStore.open(path)).toThrow(
      expect.objectContaining({
        code: 'setup_failed',
        message:
          `the database ${path} has format 5, and this floe needs format 17; ` +
          'format 5 was never released and cannot be converted: move the file away, or start with an empty data directory',
        details: { format: 5, expected_format: 17 },
      }),
    );
    expect(await readFile(path)).toEqual(before);
    expect(await readdir(directory)).toEqual(['floe.db']);
  });

  it('is refused, and not changed, when a newer floe has written it', async () => {
    const path = join(directory, 'floe.db');
    const before = await createFile(path, 18);
    expect(() => SqliteStore.open(path)).toThrow(
      expect.objectContaining({ code: 'setup_failed', message: expect.stringContaining('run that version, or move') }),
    );
    expect(await readFile(path)).toEqual(before);
  });

  it('keeps the server from opening the other parts of the data directory', async () => {
    await createFile(join(directory, 'floe.db'), 5);
    const location = { dir: directory, database: null, blobs: null, clock: systemClock };
    await expect(openStore(location)).rejects.toMatchObject({ code: 'setup_failed' });
    expect(await readdir(directory)).toEqual(['floe.db']);
  });
});
