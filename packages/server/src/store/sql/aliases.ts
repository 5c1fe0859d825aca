import type { AliasedTask, AliasRow } from '../rows.ts';
import type { AliasTable } from '../store.ts';
import type { QueryBuilder } from './database.ts';

export class SqlAliases implements AliasTable {
  private readonly db: QueryBuilder;

  constructor(db: QueryBuilder) {
    this.db = db;
  }

  async put(row: AliasRow): Promise<void> {
    await this.db
      .insertInto('aliases')
      .values(row)
      .onConflict((conflict) => conflict.columns(['api', 'alias']).doUpdateSet({ task_id: row.task_id }))
      .execute();
  }

  get(api: AliasRow['api'], alias: string): Promise<AliasRow | undefined> {
    return this.db
      .selectFrom('aliases')
      .selectAll()
      .where('api', '=', api)
      .where('alias', '=', alias)
      .executeTakeFirst();
  }

  ofTask(taskId: string): Promise<AliasRow | undefined> {
    return this.db.selectFrom('aliases').selectAll().where('task_id', '=', taskId).executeTakeFirst();
  }

  list(api: AliasRow['api'], limit: number): Promise<AliasedTask[]> {
    return this.db
      .selectFrom('aliases')
      .innerJoin('tasks', 'tasks.task_id', 'aliases.task_id')
      .selectAll('tasks')
      .select('aliases.alias')
      .where('aliases.api', '=', api)
      .orderBy('tasks.order_no', 'desc')
      .limit(limit)
      .execute();
  }
}
