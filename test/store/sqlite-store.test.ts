import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Libsql from 'libsql';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { SqliteStore } from '../../src/store/index.ts';
import { MIGRATIONS } from '../../src/store/sqlite/migrations.ts';
import { describeStore } from './store-contract.ts';
import { addSessions, taskRow } from './store-rows.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'floe-store-'));
});
afterEach(() => rm(directory, { recursive: true, force: true }));

describeStore('SqliteStore in a file', async () => SqliteStore.open(join(directory, 'nested', 'floe.db')));
describeStore('SqliteStore in memory', async () => SqliteStore.open(':memory:'));

test('what was committed is there after the file is opened again', async () => {
  const path = join(directory, 'floe.db');
  const first = SqliteStore.open(path);
  await first.transaction((tables) => tables.tasks.insert(taskRow('t1')));
  await first.close();
  const second = SqliteStore.open(path);
  expect(await second.transaction((tables) => tables.tasks.get('t1'))).toMatchObject(taskRow('t1'));
  await second.close();
});

test('two stores on one file see each other', async () => {
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

test('the file is in write-ahead mode', async () => {
  const path = join(directory, 'floe.db');
  await SqliteStore.open(path).close();
  const raw = new Libsql(path);
  expect(raw.prepare('pragma journal_mode').all()).toEqual([{ journal_mode: 'wal' }]);
  raw.close();
});

test('a database of an older floe keeps its results and takes artifacts', async () => {
  const path = join(directory, 'floe.db');
  const raw = new Libsql(path);
  raw.exec(MIGRATIONS[0]?.sql ?? '');
  raw.exec(`
    pragma user_version = 1;
    insert into sessions values (1, 'old', 'a', 0, 'COMPLETED', 0, 1, 1, 1, null, null, 0, 0, 0, 0, 0, '{}', 1, '', '');
    insert into results values (1, 'old', 'a', 't', 5, 'c', 6);
    insert into deliveries values ('old', 1, 'd', '{}', 't', 'c', '');
  `);
  raw.close();
  const store = SqliteStore.open(path);
  const read = await store.transaction(async (tables) => ({
    result: await tables.results.ofSession('old'),
    delivery: await tables.results.delivery('old', 1),
    next: await tables.results.append(
      { session_id: 'new', task_id: 'a', trainer: 'default' },
      {
        trajectory: null,
        completions: null,
        artifacts: { ref: 'x', bytes: 9 },
      },
    ),
  }));
  expect(read).toMatchObject({
    result: { trajectory_ref: 't', completions_bytes: 6, artifacts_ref: null, artifacts_bytes: 0 },
    delivery: { digest: 'd', artifacts_ref: null },
    next: 2,
  });
  await store.close();
});

test('a database of a newer floe is refused', async () => {
  const path = join(directory, 'floe.db');
  await SqliteStore.open(path).close();
  const raw = new Libsql(path);
  raw.exec('pragma user_version = 999');
  raw.close();
  expect(() => SqliteStore.open(path)).toThrow(expect.objectContaining({ code: 'setup_failed' }));
});

test('a file that is no database is refused and left alone', async () => {
  const path = join(directory, 'floe.db');
  await writeFile(path, 'this is not a database, it is a text of some length'.repeat(50));
  expect(() => SqliteStore.open(path)).toThrow(expect.objectContaining({ code: 'setup_failed' }));
});
