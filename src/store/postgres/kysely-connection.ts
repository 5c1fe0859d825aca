import {
  type CompiledQuery,
  type DatabaseConnection,
  type Dialect,
  type Driver,
  Kysely,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
  type QueryResult,
} from 'kysely';
import type { Connection, Database } from '../sql/tables.ts';
import type { BoundedClient } from './client.ts';

const READS = /^\s*select\b/;

/**
 * kysely over one connection that somebody else took from the pool and gives back. `begun` is when the transaction has begun: what
 * only reads is sent without waiting for that, which saves a round trip.
 */
export function kyselyOver(client: BoundedClient, begun: () => Promise<unknown>): Connection {
  const connection: DatabaseConnection = {
    async executeQuery<R>({ sql, parameters }: CompiledQuery): Promise<QueryResult<R>> {
      if (!READS.test(sql)) await begun();
      const { rows, rowCount } = await client.run(sql, parameters);
      return { rows: rows as R[], numAffectedRows: BigInt(rowCount ?? 0) };
    },
    streamQuery() {
      throw new Error('rows are not streamed');
    },
  };
  const nothing = async (): Promise<void> => {};
  const transactionsAreElsewhere = (): Promise<void> =>
    Promise.reject(new Error('the store begins and ends transactions'));
  const driver: Driver = {
    init: nothing,
    acquireConnection: async () => connection,
    releaseConnection: nothing,
    beginTransaction: transactionsAreElsewhere,
    commitTransaction: transactionsAreElsewhere,
    rollbackTransaction: transactionsAreElsewhere,
    destroy: nothing,
  };
  const dialect: Dialect = {
    createDriver: () => driver,
    createQueryCompiler: () => new PostgresQueryCompiler(),
    createAdapter: () => new PostgresAdapter(),
    createIntrospector: (db) => new PostgresIntrospector(db),
  };
  return new Kysely<Database>({ dialect });
}
