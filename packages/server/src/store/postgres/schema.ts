import { SCHEMA_FORMAT, type SchemaDialect, schemaSql, wrongFormat } from '../sql/schema.ts';
import type { BoundedClient } from './connection.ts';
import { LOCK_CLASS, SCHEMA_LOCK } from './flavor.ts';

/**
 * Time limit in milliseconds for creating the tables. A server that starts at the same time waits up to this time for the server that
 * creates the tables.
 */
const SETUP_TIMEOUT_MS = 60_000;

/** The SQL of the tables that is specific to PostgreSQL. */
export const POSTGRES_SCHEMA: SchemaDialect = {
  serial: 'bigint generated always as identity primary key',
  bigint: 'bigint',
  double: 'double precision',
  bytewise: 'text collate "C"',
  storage: ({ postgres }) => (postgres === undefined ? '' : `with (${postgres})`),
  countTasks: `create function count_task() returns trigger language plpgsql as $$
    begin
      if tg_op <> 'INSERT' then
        insert into task_counts values (old.status, -1);
      end if;
      if tg_op <> 'DELETE' then
        insert into task_counts values (new.status, 1);
      end if;
      return null;
    end
  $$;
  create trigger task_counted after insert or delete or update of status on tasks
    for each row execute function count_task();`,
  addUncollected: `create function add_uncollected() returns trigger language plpgsql as $$
    begin
      insert into uncollected values (new.cursor, new.task_id, new.trainer,
        new.trajectory_bytes + new.completions_bytes + new.artifacts_bytes);
      return null;
    end
  $$;
  create trigger result_added after insert on results for each row execute function add_uncollected();`,
  recordGroupChanges: `create function record_batch_group_change() returns trigger language plpgsql as $$
    begin
      if tg_op = 'UPDATE' then
        insert into batch_group_changes
          values (old.batch_id, old.state, old.reason, -1, -old.sessions, -old.resolved, -old.sampled_tokens);
      end if;
      insert into batch_group_changes
        values (new.batch_id, new.state, new.reason, 1, new.sessions, new.resolved, new.sampled_tokens);
      return null;
    end
  $$;
  create trigger batch_group_added after insert on batch_groups
    for each row execute function record_batch_group_change();
  create trigger batch_group_changed after update of state, reason, sessions, resolved, sampled_tokens on batch_groups
    for each row execute function record_batch_group_change();`,
  sessionWords: `create table session_words (fact_no bigint primary key, words tsvector not null);
  create index session_words_index on session_words using gin (words);`,
};

/**
 * Creates the tables in an empty database, either all or none. The table `floe_schema` stores the version number of the tables' format.
 * Throws `setup_failed` for a database with another format, and changes nothing in that database.
 */
export async function createTables(client: BoundedClient, database: string): Promise<void> {
  await client.run('begin');
  try {
    await client.run(`set local statement_timeout = ${SETUP_TIMEOUT_MS}`);
    await client.runScript(`select pg_advisory_xact_lock(${LOCK_CLASS}, ${SCHEMA_LOCK})`, SETUP_TIMEOUT_MS);
    await client.run('create table if not exists floe_schema (version integer not null)');
    const { rows } = await client.run('select version from floe_schema');
    const format = (rows as { version: number }[])[0]?.version ?? 0;
    if (format === 0) {
      await client.runScript(schemaSql(POSTGRES_SCHEMA), SETUP_TIMEOUT_MS);
      await client.run('insert into floe_schema values ($1)', [SCHEMA_FORMAT]);
    } else if (format !== SCHEMA_FORMAT) {
      throw wrongFormat(database, format, 'drop or rename the database, or start with an empty one');
    }
    await client.run('commit');
  } catch (thrown) {
    await client.run('rollback').catch(() => {});
    throw thrown;
  }
}
