import { randomBytes } from 'node:crypto';
import { chown, mkdir, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { FloeError, systemClock } from '@floe-rl/core';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { PostgresStore } from '../../../src/store/postgres/store.ts';
import { postgresMissing, usePostgres } from '../../store/postgres.ts';
import { NO_SMALL_DISK, smallDisk } from '../../store/small-disk.ts';
import { taskRow } from '../../store/store-rows.ts';

const insert = (store: PostgresStore, id: string) => store.transaction((tables) => tables.tasks.insert(taskRow(id)));

/**
 * Maximum time in milliseconds that a killed database server may take to start. It first replays its write-ahead log, which is slow on a
 * busy machine.
 */
const RECOVERY_MS = 120_000;

const open = (url: string) => PostgresStore.open(url, { clock: systemClock });

async function codeOf(promise: Promise<unknown>): Promise<string> {
  return promise.then(
    () => 'done',
    (thrown: unknown) => (FloeError.is(thrown) ? thrown.code : String(thrown)),
  );
}

/** Repeats an operation while it throws `store_unavailable`, as callers of the store do. */
async function untilDone(work: () => Promise<unknown>): Promise<void> {
  for (;;) {
    const code = await codeOf(work());
    if (code === 'done') return;
    expect(code).toBe('store_unavailable');
  }
}

describeIf(postgresMissing(), 'PostgreSQL with faults', () => {
  const cluster = usePostgres();
  let url: string;
  let store: PostgresStore;
  beforeEach(async () => {
    url = await cluster().createDatabase();
    store = await open(url);
  });
  afterEach(() => store.close());

  it('creates the tables once when several servers start concurrently', async () => {
    const empty = await cluster().createDatabase();
    const stores = await Promise.all(Array.from({ length: 6 }, () => open(empty)));
    await Promise.all(stores.map((one, i) => insert(one, `t${i}`)));
    for (const one of stores)
      expect(await one.read(({ tasks }) => tasks.countByStatus())).toEqual(new Map([['running', 6]]));
    await Promise.all(stores.map((one) => one.close()));
  });

  it('refuses a database that a newer floe has written', async () => {
    const newer = await cluster().createDatabase();
    await (await open(newer)).close();
    await cluster().query('update floe_schema set version = 999', newer);
    await expect(open(newer)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('has format 999, and this floe needs format 17; a newer floe has written it'),
    });
  });

  it('refuses a database in a format that was never released, and does not change it', async () => {
    const old = await cluster().createDatabase();
    const statements = [
      'create table floe_schema (version integer not null)',
      'insert into floe_schema values (1)',
      'create table tasks (task_id text primary key, digest text not null)',
      "insert into tasks values ('old', 'd')",
    ];
    for (const statement of statements) await cluster().query(statement, old);
    const dump = async () => [
      await cluster().query(
        "select table_name, column_name, data_type from information_schema.columns where table_schema = 'public' order by 1, 2",
        old,
      ),
      await cluster().query('select * from floe_schema', old),
      await cluster().query('select * from tasks', old),
    ];
    const before = await dump();
    const { host, pathname } = new URL(old);
    await expect(open(old)).rejects.toMatchObject({
      code: 'setup_failed',
      message:
        `the database ${host}${pathname} has format 1, and this floe needs format 17; format 1 was never released ` +
        'and cannot be converted: drop or rename the database, or start with an empty one',
      details: { format: 1, expected_format: 17 },
    });
    expect(await dump()).toEqual(before);
  });

  it('reports an unusable or unreachable database without the password', async () => {
    const { username, password, port } = new URL(url);
    const failures = [
      [`postgres://${username}:${password}@127.0.0.1:${port}/nothing-there`, 'setup_failed'],
      [`postgres://${username}:wrong-${password}@127.0.0.1:${port}/floe`, 'setup_failed'],
      [`postgres://${username}:${password}@127.0.0.1:1/floe`, 'store_unavailable'],
      [`postgres://${username}:${password}@127.0.0.1:${port}/floe?sslmode=verify-full`, 'store_unavailable'],
      [`mysql://${username}:${password}@127.0.0.1/floe`, 'setup_failed'],
      [`${username}:${password}@127.0.0.1/floe`, 'setup_failed'],
      [`postgres://${username}:${password}@[127/floe`, 'setup_failed'],
    ] as const;
    for (const [target, code] of failures) {
      const failure = await open(target).catch((thrown: unknown) => thrown);
      expect(failure).toMatchObject({ code });
      expect(inspect(failure, { depth: 20, showHidden: true })).not.toContain(password);
    }
  });

  it('loses nothing that was acknowledged when it is killed under load, and then resumes', {
    timeout: RECOVERY_MS,
  }, async () => {
    const acknowledged: string[] = [];
    const codes = new Set<string>();
    let stop = false;
    let enough: () => void = () => {};
    const worker = async (name: number): Promise<void> => {
      for (let i = 0; !stop; i++) {
        const id = `w${name}-${i}`;
        const code = await codeOf(insert(store, id));
        codes.add(code);
        if (code === 'done') acknowledged.push(id);
        enough();
      }
    };
    const reach = (count: number) =>
      new Promise<void>((resolve) => {
        enough = () => {
          if (acknowledged.length >= count) resolve();
        };
      });
    const workers = Array.from({ length: 20 }, (_, name) => worker(name));
    for (let kill = 1; kill <= 3; kill++) {
      await reach(acknowledged.length + 100);
      await cluster().restart({ kill: true });
    }
    await reach(acknowledged.length + 100);
    stop = true;
    await Promise.all(workers);
    expect([...codes].sort()).toEqual(['done', 'store_unavailable']);
    const kept = await store.read(({ tasks }) => tasks.list({ status: null, limit: 1_000_000 }));
    const ids = new Set(kept.map((row) => row.task_id));
    expect(acknowledged.filter((id) => !ids.has(id))).toEqual([]);
  });

  it('leaves nothing of a transaction that it aborted, which can be repeated immediately', async () => {
    const broken = store.transaction(async (tables) => {
      await tables.tasks.insert(taskRow('t'));
      await cluster().query(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname <> 'postgres' and pid <> pg_backend_pid()",
        url,
      );
      await tables.tasks.insert(taskRow('u'));
    });
    await expect(broken).rejects.toMatchObject({ code: 'store_unavailable' });
    await untilDone(() => insert(store, 't'));
    expect(await store.read(({ tasks }) => tasks.countByStatus())).toEqual(new Map([['running', 1]]));
  });

  it('refuses transactions while it is read-only', async () => {
    const name = new URL(url).pathname.slice(1);
    const setReadOnly = (value: 'on' | 'off') =>
      cluster().query(`alter database ${name} set default_transaction_read_only = ${value}`);
    await setReadOnly('on');
    await cluster().query(`select pg_terminate_backend(pid) from pg_stat_activity where datname = '${name}'`);
    await codeOf(insert(store, 't0'));
    const refused = insert(store, 't1');
    await expect(refused).rejects.toMatchObject({ code: 'store_unavailable', details: { code: '25006' } });
    expect(await store.read(({ tasks }) => tasks.countByStatus())).toEqual(new Map());
    await setReadOnly('off');
    await cluster().query(`select pg_terminate_backend(pid) from pg_stat_activity where datname = '${name}'`);
    await untilDone(() => insert(store, 't1'));
  });

  it('causes store_unavailable while its disk is full, and resumes without a restart when space is free', async (context) => {
    const disk = await smallDisk(16_000_000);
    if (disk === null) return context.skip(NO_SMALL_DISK);
    try {
      await chownLike(cluster().dir, disk.dir);
      const ballast = join(disk.dir, 'ballast');
      await writeFile(ballast, Buffer.alloc(3_000_000));
      await mkdir(join(disk.dir, 'space'));
      await chownLike(cluster().dir, join(disk.dir, 'space'));
      await cluster().query(`create tablespace small location '${disk.dir}/space'`);
      await cluster().query('create database small tablespace small');
      const small = await open(cluster().url.replace(/floe$/, 'small'));
      const fill = (id: string) =>
        // The stored text is random, so that the database server cannot compress it and the disk becomes full.
        small.transaction(({ tasks }) => tasks.insert(taskRow(id, { request: randomBytes(100_000).toString('hex') })));
      let full: unknown = null;
      for (let i = 0; full === null; i++) await fill(`t${i}`).catch((thrown: unknown) => (full = thrown));
      expect(full).toMatchObject({ code: 'store_unavailable', details: { code: '53100' } });
      const before = await small.read(({ tasks }) => tasks.countByStatus());
      await rm(ballast);
      await fill('after');
      expect(await small.read(({ tasks }) => tasks.countByStatus())).toEqual(
        new Map([['running', (before.get('running') ?? 0) + 1]]),
      );
      await small.close();
      await cluster().query('drop database small with (force)');
      await cluster().query('drop tablespace small');
    } finally {
      await disk.close();
    }
  });

  it('is given up while it hangs, and used once it responds', async () => {
    // With this clock, the store's time limits pass twenty times as fast, so that the test is short.
    const hasty = { ...systemClock, schedule: (ms: number, call: () => void) => systemClock.schedule(ms / 20, call) };
    const impatient = await PostgresStore.open(url, { clock: hasty });
    cluster().pause();
    try {
      expect(await codeOf(insert(impatient, 't'))).toBe('store_unavailable');
      expect(await codeOf(impatient.read(({ tasks }) => tasks.get('t')))).toBe('store_unavailable');
    } finally {
      cluster().resume();
    }
    await untilDone(() => insert(impatient, 'u'));
    await impatient.close();
  });

  it('releases the locks and ends the transaction of a floe server that is suspended in it', async () => {
    await insert(store, 't');
    const other = await open(url);
    let locked: () => void = () => {};
    const holdsLock = new Promise<void>((resolve) => (locked = resolve));
    let wakeUp: () => void = () => {};
    const still = new Promise<void>((resolve) => (wakeUp = resolve));
    const frozen = store.transaction(async ({ tasks }) => {
      await tasks.lock('t');
      locked();
      await still;
      await tasks.update('t', { refilled: 1 });
    });
    await holdsLock;
    await other.transaction(async ({ tasks }) => {
      const row = await tasks.lock('t');
      await tasks.update('t', { refilled: (row?.refilled ?? 0) + 10 });
    });
    wakeUp();
    expect(await codeOf(frozen)).toBe('store_unavailable');
    expect(await store.read(({ tasks }) => tasks.get('t'))).toMatchObject({ refilled: 10 });
    await other.close();
  });

  it('does not report work as committed when it ignored a failed statement', async () => {
    const sloppy = store.transaction(async ({ results, tasks }) => {
      const session = { session_id: 's', task_id: 'a', trainer: 'x' };
      const blobs = { trajectory: null, completions: null, artifacts: null };
      await results.append(session, blobs);
      await results.append(session, blobs).catch(() => {});
      return tasks;
    });
    await expect(sloppy).rejects.toThrow('nothing was committed');
    expect(await store.read(({ results }) => results.newestCursor())).toBe(0);
  });

  it('refuses a value that it cannot store as a mistake of the caller', async () => {
    const nul = store.transaction(({ tasks }) => tasks.insert(taskRow('t', { idempotency_key: 'a\u0000b' })));
    await expect(nul).rejects.toMatchObject({ code: 'schema_violation' });
    const large = store.transaction(({ results }) => results.delivery('s', 2 ** 31));
    await expect(large).rejects.toMatchObject({ code: 'schema_violation' });
  });
});

async function chownLike(model: string, path: string): Promise<void> {
  const { uid, gid } = await stat(model);
  await chown(path, uid, gid);
}
