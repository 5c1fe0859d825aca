import { afterAll, beforeAll } from 'vitest';
import { type PostgresCluster, startPostgres, whyNoPostgres } from '../../../../verify/services/postgres-cluster.ts';

/** Returns the reason why PostgreSQL cannot be started on this machine and the command that installs it; `null` when it can be started. */
export function postgresMissing(): string | null {
  const why = whyNoPostgres();
  return why === null ? null : `PostgreSQL cannot be started here: apt-get install postgresql (${why})`;
}

/**
 * Settings that make PostgreSQL leave syncing to the operating system. Only a crash of the machine, which no test simulates, can then lose a
 * commit; a killed server loses nothing. Without these settings, creating a database for each test takes most of the time.
 */
const UNSYNCED = { fsync: 'off', full_page_writes: 'off' };

/**
 * Starts PostgreSQL before the tests of a file or `describe` block, and stops it after them. Returns a function that returns the database
 * server while the tests run.
 */
export function usePostgres(settings: Readonly<Record<string, string | number>> = {}): () => PostgresCluster {
  let cluster: PostgresCluster | null = null;
  beforeAll(async () => {
    cluster = await startPostgres({ settings: { ...UNSYNCED, ...settings }, inMemory: true });
  });
  afterAll(() => cluster?.stop());
  return () => {
    if (cluster === null) throw new Error('PostgreSQL has not been started');
    return cluster;
  };
}
