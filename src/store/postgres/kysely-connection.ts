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

/** kysely over one connection that somebody else took from the pool and gives back. */
export function kyselyOver(client: BoundedClient): Connection {
  const connection: DatabaseConnection = {
    async executeQuery<R>({ sql, parameters }: CompiledQuery): Promise<QueryResult<R>> {
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
