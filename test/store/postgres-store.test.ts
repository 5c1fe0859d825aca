import { systemClock } from '../../src/core/clock.ts';
import { PostgresStore } from '../../src/store/postgres/store.ts';
import { describeIf } from '../skip.ts';
import { postgresMissing, usePostgres } from './postgres.ts';
import { describeStore } from './store-contract.ts';

describeIf(postgresMissing(), 'PostgreSQL', () => {
  const cluster = usePostgres();
  describeStore('PostgresStore', async () =>
    PostgresStore.open(await cluster().createDatabase(), { clock: systemClock }),
  );
});
