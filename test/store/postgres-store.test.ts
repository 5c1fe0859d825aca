import { describe } from 'vitest';
import { systemClock } from '../../src/core/clock.ts';
import { PostgresStore } from '../../src/store/postgres/store.ts';
import { postgresMissing, usePostgres } from './postgres.ts';
import { describeStore } from './store-contract.ts';

describe.skipIf(postgresMissing() !== null)('PostgreSQL', () => {
  const cluster = usePostgres();
  describeStore('PostgresStore', async () =>
    PostgresStore.open(await cluster().createDatabase(), { clock: systemClock }),
  );
});
