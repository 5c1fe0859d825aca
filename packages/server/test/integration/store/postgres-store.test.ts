import { systemClock } from '@floe-rl/core';
import pg from 'pg';
import { expect, it, onTestFinished, vi } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { PostgresStore } from '../../../src/store/postgres/store.ts';
import { postgresMissing, usePostgres } from '../../store/postgres.ts';
import { describeStore } from '../../store/store-contract.ts';
import { AT, addSessions } from '../../store/store-rows.ts';

/** A claim of 16 sessions, at a time when all queued sessions are overdue. */
const CLAIM = { nodeId: 'n1', trainer: 'default', limit: 16, nowMs: 1e9, leaseExpiresMs: 1e9, updatedAt: AT };

describeIf(postgresMissing(), 'PostgreSQL', () => {
  const cluster = usePostgres();
  describeStore('PostgresStore', async () =>
    PostgresStore.open(await cluster().createDatabase(), { clock: systemClock }),
  );

  it('accepts writes after a failover during which its connection was opened read-only', async () => {
    const url = await cluster().createDatabase();
    const admin = new pg.Client({ connectionString: url });
    await admin.connect();
    const setReadOnly = (value: string) =>
      admin.query(`alter database "${admin.database}" set default_transaction_read_only = ${value}`);
    const store = await PostgresStore.open(url, { clock: systemClock });
    const write = () => store.transaction((tables) => tables.tombstones.removeExpired(0));
    await setReadOnly('on');
    await admin.query(
      'select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()',
      [admin.database],
    );
    await expect.poll(() => write().catch((thrown) => thrown.details.code), { timeout: 90_000 }).toBe('25006');
    await setReadOnly('off');
    await write();
    await Promise.all([admin.end(), store.close()]);
  });

  it('reads few rows for a claim when the statistics of the table are older than the queue', async () => {
    const url = await cluster().createDatabase();
    const admin = new pg.Client({ connectionString: url });
    await admin.connect();
    const store = await PostgresStore.open(url, { clock: systemClock });
    onTestFinished(async () => void (await Promise.all([admin.end(), store.close()])));
    await store.transaction((tables) => addSessions(tables, 'ended', ids('e', 10_000)));
    await admin.query(`alter table sessions set (autovacuum_enabled = off); update sessions set status = 'COMPLETED'`);
    await admin.query('vacuum analyze sessions');
    await store.transaction((tables) => addSessions(tables, 'queued', ids('q', 5_000)));
    const sent = vi.spyOn(pg.Client.prototype, 'query');
    await store.transaction(async (tables) => {
      await tables.sessions.waitingTrainers(1e9);
      for (const order of ['fifo', 'longest_first', 'overdue'] as const)
        await tables.sessions.claim({ ...CLAIM, order });
    });
    const statements = sent.mock.calls.map(([query]) => query as unknown as pg.QueryConfig);
    sent.mockRestore();
    const read = statements.filter(({ text }) => text?.includes('QUEUED'));
    expect(read).toHaveLength(4);
    for (const { text, values } of read) {
      const { rows } = await admin.query(`explain (analyze, format json) ${text}`, values);
      expect(rowsRead(rows[0]['QUERY PLAN'][0].Plan), text).toBeLessThan(1_000);
    }
  });
});

const ids = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, i) => `${prefix}${i}`);

type Plan = { readonly 'Actual Rows': number; readonly 'Actual Loops': number; readonly Plans?: readonly Plan[] };

/** Returns the number of rows that all parts of a plan have returned. */
function rowsRead({ Plans: parts = [], ...plan }: Plan): number {
  return parts.reduce((sum, part) => sum + rowsRead(part), plan['Actual Rows'] * plan['Actual Loops']);
}
