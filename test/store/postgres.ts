import { afterAll, beforeAll } from 'vitest';
import { type PostgresCluster, startPostgres, whyNoPostgres } from '../../tools/postgres-cluster.mjs';

/** Why there is no PostgreSQL to test with, told once per file; null: there is one. */
export function postgresMissing(): string | null {
  const why = whyNoPostgres();
  if (why !== null) console.warn(`PostgreSQL is not tested: ${why}`);
  return why;
}

/** A server of its own for the tests of one file or `describe`; the function returned gives it once they run. */
export function usePostgres(settings: Readonly<Record<string, string | number>> = {}): () => PostgresCluster {
  let cluster: PostgresCluster | null = null;
  beforeAll(async () => {
    cluster = await startPostgres({ settings });
  });
  afterAll(() => cluster?.stop());
  return () => {
    if (cluster === null) throw new Error('PostgreSQL has not been started');
    return cluster;
  };
}
