import { sql } from 'kysely';
import type { EngineRow, EngineStateRow } from '../rows.ts';
import type { EngineTable } from '../store.ts';
import type { QueryBuilder, SqlFlavor } from './database.ts';

const STATE = ['revision', 'paused', 'while_paused', 'policy_version', 'removed'] as const;

export class SqlEngines implements EngineTable {
  private readonly db: QueryBuilder;
  private readonly flavor: SqlFlavor;

  constructor(db: QueryBuilder, flavor: SqlFlavor) {
    this.db = db;
    this.flavor = flavor;
  }

  list(): Promise<EngineRow[]> {
    return this.db.selectFrom('engines').selectAll().orderBy('engine_id').execute();
  }

  async put(row: EngineRow): Promise<void> {
    const { engine_id: _, ...rest } = row;
    await this.db
      .insertInto('engines')
      .values(row)
      .onConflict((conflict) => conflict.column('engine_id').doUpdateSet(rest))
      .execute();
  }

  async remove(engineId: string): Promise<void> {
    await this.db.deleteFrom('engines').where('engine_id', '=', engineId).execute();
  }

  state(): Promise<EngineStateRow> {
    return this.db.selectFrom('engine_state').select(STATE).executeTakeFirstOrThrow();
  }

  async lock(): Promise<EngineStateRow> {
    const columns = sql.join(STATE.map((column) => sql.ref(column)));
    const { rows } = await sql<EngineStateRow>`select ${columns} from engine_state ${this.flavor.forUpdate}`.execute(
      this.db,
    );
    const [row] = rows;
    if (row === undefined) throw new Error('the row of engine_state is missing');
    return row;
  }

  advance(patch: Partial<Omit<EngineStateRow, 'revision'>>): Promise<EngineStateRow> {
    return this.db
      .updateTable('engine_state')
      .set({ ...patch, revision: sql<number>`revision + 1` })
      .returning(STATE)
      .executeTakeFirstOrThrow();
  }
}
