import { FloeError } from '../../core/errors.ts';
import type { BoundedClient } from './client.ts';
import { LOCK_CLASS, MIGRATION_LOCK } from './flavor.ts';
import { MIGRATIONS } from './migrations.ts';

/** For one migration, and for the servers that started at the same time and wait for it. */
const MIGRATION_TIMEOUT_MS = 60_000;

/** Brings the database to the newest migration, all or nothing. Throws `setup_failed` when a newer floe has been here. */
export async function migrate(client: BoundedClient): Promise<void> {
  await client.run('begin');
  try {
    await client.run(`set local statement_timeout = ${MIGRATION_TIMEOUT_MS}`);
    await client.runScript(`select pg_advisory_xact_lock(${LOCK_CLASS}, ${MIGRATION_LOCK})`, MIGRATION_TIMEOUT_MS);
    await client.run('create table if not exists floe_schema (version integer not null)');
    const { rows } = await client.run('select version from floe_schema');
    const current = (rows as { version: number }[])[0]?.version ?? 0;
    await apply(client, current);
    await client.run('commit');
  } catch (thrown) {
    await client.run('rollback').catch(() => {});
    throw thrown;
  }
}

async function apply(client: BoundedClient, current: number): Promise<void> {
  const newest = MIGRATIONS.at(-1)?.number ?? 0;
  if (current > newest) {
    throw new FloeError(
      'setup_failed',
      `the database has version ${current} and this floe knows ${newest}: run a newer floe`,
    );
  }
  if (current === newest) return;
  for (const migration of MIGRATIONS.filter(({ number }) => number > current)) {
    await client.runScript(migration.sql, MIGRATION_TIMEOUT_MS);
  }
  await client.run('delete from floe_schema');
  await client.run('insert into floe_schema values ($1)', [newest]);
}
