import { sql } from 'kysely';
import type { NodeRow } from '../rows.ts';
import type { NodeTable } from '../store.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';

export class SqlNodes implements NodeTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  async put(row: NodeRow): Promise<void> {
    const { node_id: nodeId, ...rest } = row;
    await this.db.deleteFrom('node_engines').where('node_id', '=', nodeId).execute();
    await this.db
      .insertInto('nodes')
      .values(row)
      .onConflict((conflict) => conflict.column('node_id').doUpdateSet(rest))
      .execute();
  }

  get(nodeId: string): Promise<NodeRow | undefined> {
    return this.db.selectFrom('nodes').selectAll().where('node_id', '=', nodeId).executeTakeFirst();
  }

  async lock(nodeId: string): Promise<NodeRow | undefined> {
    const { rows } = await sql<NodeRow>`
      select * from nodes where node_id = ${nodeId} ${this.flavor.forUpdate}`.execute(this.db);
    return rows[0];
  }

  list(): Promise<NodeRow[]> {
    return this.db.selectFrom('nodes').selectAll().orderBy('node_id').execute();
  }

  draining(): Promise<NodeRow[]> {
    return this.db.selectFrom('nodes').selectAll().where('draining', '=', 1).orderBy('node_id').execute();
  }

  async hasOther(nodeId: string, seenSinceMs: number): Promise<boolean> {
    const row = await this.db
      .selectFrom('nodes')
      .select('node_id')
      .where('node_id', '<>', nodeId)
      .where('draining', '=', 0)
      .where('refuses', 'is', null)
      .where('last_seen_ms', '>=', seenSinceMs)
      .limit(1)
      .executeTakeFirst();
    return row !== undefined;
  }

  async update(nodeId: string, patch: Partial<Omit<NodeRow, 'node_id'>>): Promise<void> {
    await this.db.updateTable('nodes').set(patch).where('node_id', '=', nodeId).execute();
  }

  async remove(nodeId: string): Promise<void> {
    await this.db.deleteFrom('node_engines').where('node_id', '=', nodeId).execute();
    await this.db.deleteFrom('nodes').where('node_id', '=', nodeId).execute();
  }

  async putEngineInfo(nodeId: string, info: string): Promise<void> {
    await this.db
      .insertInto('node_engines')
      .values({ node_id: nodeId, info })
      .onConflict((conflict) => conflict.column('node_id').doUpdateSet({ info }))
      .execute();
  }

  async engineInfo(): Promise<ReadonlyMap<string, string>> {
    const rows = await this.db.selectFrom('node_engines').selectAll().execute();
    return new Map(rows.map(({ node_id, info }) => [node_id, info]));
  }
}
