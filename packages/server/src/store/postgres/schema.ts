import { SCHEMA_FORMAT, wrongFormat } from '../sql/database.ts';
import type { BoundedClient } from './connection.ts';
import { LOCK_CLASS, SCHEMA_LOCK } from './flavor.ts';

/**
 * Time limit in milliseconds for creating the tables. A server that starts at the same time waits up to this time for the server that
 * creates the tables.
 */
const SETUP_TIMEOUT_MS = 60_000;

/**
 * The SQL that creates all tables and indexes. Ids sort by their bytes (`collate "C"`), as they do in SQLite and JavaScript. Partial
 * indexes serve the frequent queries; the conditions of these indexes are written exactly as in the statements of `store/sql/`.
 */
const SCHEMA = `
  create table tasks (
    order_no bigint generated always as identity primary key,
    task_id text collate "C" not null unique,
    idempotency_key text collate "C" unique,
    digest text not null,
    request text not null,
    status text not null,
    harness text not null,
    trainer text not null,
    total_sessions integer not null,
    completed_sessions integer not null,
    usable_sessions integer not null,
    baseline_sessions integer not null,
    refilled integer not null,
    refills_left integer not null,
    early_stopped integer not null,
    reward_sum double precision not null,
    reward_count integer not null,
    callback_url text,
    deadline_ms double precision,
    ended_ms double precision,
    created_at text not null
  ) with (fillfactor = 70);
  create index tasks_by_status on tasks (status, order_no);
  create table task_counts (status text not null, tasks bigint not null);
  create function count_task() returns trigger language plpgsql as $$
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
    for each row execute function count_task();
  create index tasks_deadline on tasks (deadline_ms) where status = 'running' and deadline_ms is not null;
  create index tasks_cancelled on tasks (order_no) where status = 'cancelled' and ended_ms is null;
  create index tasks_ended on tasks (ended_ms) where ended_ms is not null;

  create table sessions (
    queue_order bigint generated always as identity primary key,
    session_id text collate "C" not null unique,
    task_id text collate "C" not null,
    sample_index integer not null,
    status text not null,
    trainer text collate "C" not null,
    priority integer not null,
    attempt integer not null,
    max_attempts integer not null,
    epoch integer not null,
    node_id text,
    lease_expires_ms double precision,
    expected_ms double precision not null,
    memory_mb integer not null,
    avoid_node text,
    avoid_until_ms double precision not null,
    not_before_ms double precision not null,
    queued_since_ms double precision not null,
    turns integer not null,
    sampled_tokens bigint not null,
    cancel_requested integer not null,
    unusable text,
    summary text,
    created_at text not null,
    updated_at text not null,
    unique (task_id, sample_index)
  ) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000);
  create index sessions_fifo on sessions (trainer, priority desc, queue_order) where status = 'QUEUED';
  create index sessions_longest on sessions (trainer, priority desc, expected_ms desc, queue_order)
    where status = 'QUEUED';
  create index sessions_leased on sessions (lease_expires_ms) where lease_expires_ms is not null;
  create index sessions_held on sessions (node_id) where lease_expires_ms is not null;
  create index sessions_cancelled on sessions (node_id) where cancel_requested = 1;
  create index sessions_waiting on sessions (task_id, session_id) where status = 'QUEUED';
  create index sessions_unusable on sessions (task_id, unusable) where unusable is not null;

  create table results (
    cursor bigint generated always as identity primary key,
    session_id text collate "C" not null unique,
    task_id text collate "C" not null,
    trainer text collate "C" not null,
    trajectory_ref text collate "C",
    trajectory_bytes bigint not null,
    completions_ref text collate "C",
    completions_bytes bigint not null,
    artifacts_ref text collate "C",
    artifacts_bytes bigint not null
  );
  create index results_by_task on results (task_id, cursor);
  create index results_by_trainer on results (trainer, cursor);
  create index results_trajectory on results (trajectory_ref) where trajectory_ref is not null;
  create index results_completions on results (completions_ref) where completions_ref is not null;
  create index results_artifacts on results (artifacts_ref) where artifacts_ref is not null;

  create table uncollected (
    cursor bigint primary key,
    task_id text collate "C" not null,
    trainer text collate "C" not null,
    bytes bigint not null
  );
  create index uncollected_by_task on uncollected (task_id);
  create index uncollected_by_trainer on uncollected (trainer, cursor);
  create function add_uncollected() returns trigger language plpgsql as $$
    begin
      insert into uncollected values (new.cursor, new.task_id, new.trainer,
        new.trajectory_bytes + new.completions_bytes + new.artifacts_bytes);
      return null;
    end
  $$;
  create trigger result_added after insert on results for each row execute function add_uncollected();

  create table deliveries (
    session_id text collate "C" not null,
    epoch integer not null,
    kind text not null,
    digest text not null,
    summary text,
    trajectory_ref text collate "C",
    completions_ref text collate "C",
    artifacts_ref text collate "C",
    delivered_at text not null,
    primary key (session_id, epoch)
  );
  create index deliveries_trajectory on deliveries (trajectory_ref) where trajectory_ref is not null;
  create index deliveries_completions on deliveries (completions_ref) where completions_ref is not null;
  create index deliveries_artifacts on deliveries (artifacts_ref) where artifacts_ref is not null;

  create table nodes (
    node_id text collate "C" primary key,
    instance text not null,
    takeovers integer not null,
    registration text not null,
    metrics text not null,
    engines text,
    draining integer not null,
    refuses text,
    claims text,
    last_seen_ms double precision not null,
    registered_at text not null,
    last_heartbeat text not null
  ) with (fillfactor = 50);
  create table node_engines (node_id text collate "C" primary key, info text not null);

  create table callbacks (
    task_id text collate "C" primary key,
    url text not null,
    tries integer not null,
    next_try_ms double precision not null,
    last_error text,
    delivered_at text
  );
  create index callbacks_due on callbacks (next_try_ms) where delivered_at is null;

  create table tombstones (task_id text collate "C" primary key, expires_ms double precision not null);

  create table engines (
    engine_id text collate "C" primary key,
    spec text not null,
    registered_at text not null
  );
  create table engine_state (
    id integer primary key check (id = 1),
    revision integer not null,
    paused text,
    while_paused text not null,
    policy_version text,
    removed text not null
  );
  insert into engine_state values (1, 0, null, 'hold', null, '[]');

  create table service_time (id integer primary key check (id = 1), now_ms double precision not null)
    with (fillfactor = 50);
  insert into service_time values (1, 0);

  create table durations (
    duration_key text collate "C" primary key,
    mean_ms double precision not null,
    samples integer not null
  ) with (fillfactor = 50);

  create table aliases (
    api text not null,
    alias text collate "C" not null,
    task_id text collate "C" not null unique,
    primary key (api, alias)
  );

  create table consumers (
    consumer text collate "C" primary key,
    trainer text not null,
    cursor bigint not null
  );

  create table batch_streams (
    order_no bigint generated always as identity primary key,
    batch_id text collate "C" not null unique,
    digest text not null,
    request text not null,
    trainer text not null,
    status text not null,
    last_batch integer not null,
    requested_batch integer not null,
    acknowledged integer not null,
    policy_version text,
    policy_step integer,
    requested_size integer not null,
    row_count integer not null,
    rows_complete integer not null,
    group_count integer not null,
    epoch integer not null,
    position integer not null,
    source_error text,
    source_retry_ms double precision not null,
    ended_ms double precision,
    created_at text not null
  );
  create index batch_streams_by_status on batch_streams (status, order_no);

  create table batch_rows (
    batch_id text collate "C" not null,
    row_index integer not null,
    problem text,
    last_epoch integer,
    mean_reward double precision,
    last_result text,
    rejections integer not null,
    retired integer not null,
    fields text not null,
    primary key (batch_id, row_index)
  );
  create index batch_rows_invalid on batch_rows (batch_id, row_index) where problem is not null;
  create index batch_rows_unsampled on batch_rows (batch_id, retired) where (problem is not null or retired = 1);

  create table batch_plans (
    batch_id text collate "C" not null,
    epoch integer not null,
    rows text not null,
    primary key (batch_id, epoch)
  );

  create table batch_groups (
    batch_id text collate "C" not null,
    group_no integer not null,
    task_id text collate "C" not null unique,
    row_index integer not null,
    epoch integer not null,
    state text not null,
    reason text,
    policy_step integer,
    batch_no integer,
    repeat integer not null,
    tries integer not null,
    usable integer not null,
    resolved integer not null,
    mean_reward double precision,
    sessions integer not null,
    sampled_tokens bigint not null,
    staleness text,
    primary key (batch_id, group_no)
  );
  create index batch_groups_by_state on batch_groups (batch_id, state, group_no);
  create index batch_groups_by_batch on batch_groups (batch_id, batch_no, group_no) where batch_no is not null;
  create index batch_groups_repeat on batch_groups (batch_id, group_no) where repeat = 1;

  create table batch_group_changes (
    batch_id text collate "C" not null,
    state text not null,
    reason text,
    groups integer not null,
    sessions integer not null,
    resolved integer not null,
    sampled_tokens bigint not null
  );
  create index batch_group_changes_by_stream on batch_group_changes (batch_id);
  create function record_batch_group_change() returns trigger language plpgsql as $$
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
    for each row execute function record_batch_group_change();

  create table session_facts (
    fact_no bigint generated always as identity primary key,
    session_id text collate "C" not null unique,
    task_id text collate "C" not null,
    sample_index integer not null,
    trainer text collate "C" not null,
    harness text collate "C" not null,
    agent text collate "C",
    source text collate "C",
    split text collate "C",
    outcome text collate "C" not null,
    unusable text collate "C",
    reward double precision,
    version text collate "C",
    first_version text collate "C",
    dialect text collate "C",
    engine text collate "C",
    node_id text collate "C",
    attempt integer not null,
    turns integer not null,
    completions integer not null,
    sampled_tokens bigint not null,
    trained_tokens bigint not null,
    traces integer not null,
    queued_ms double precision,
    init_ms double precision,
    ready_ms double precision,
    running_ms double precision,
    postrun_ms double precision,
    total_ms double precision,
    engine_ms double precision,
    sandbox_ms double precision,
    ended_ms bigint not null,
    measures text collate "C" not null
  );
  create index session_facts_by_task on session_facts (task_id, fact_no);
  create index session_facts_by_end on session_facts (ended_ms);

  create table session_words (fact_no bigint primary key, words tsvector not null);
  create index session_words_index on session_words using gin (words);

  create table session_totals (
    totals_no bigint generated always as identity primary key,
    hour_ms bigint not null,
    trainer text collate "C" not null,
    harness text collate "C" not null,
    source text collate "C" not null,
    outcome text collate "C" not null,
    version text collate "C" not null,
    dialect text collate "C" not null,
    engine text collate "C" not null,
    usable integer not null,
    sessions bigint not null,
    rewards bigint not null,
    reward_sum double precision not null,
    reward_square_sum double precision not null,
    turns bigint not null,
    sampled_tokens bigint not null,
    trained_tokens bigint not null,
    timed bigint not null,
    total_ms double precision not null,
    queued bigint not null,
    queued_ms double precision not null,
    engine_ms double precision not null,
    sandbox_ms double precision not null,
    unique (hour_ms, trainer, harness, source, outcome, version, dialect, engine, usable)
  ) with (fillfactor = 50);
  create table session_measure_totals (
    totals_no bigint not null,
    kind text collate "C" not null,
    name text collate "C" not null,
    bin integer not null,
    count bigint not null,
    failures bigint not null,
    sum double precision not null,
    square_sum double precision not null,
    primary key (totals_no, kind, name, bin)
  ) with (fillfactor = 50);
  create table session_totals_state (id integer primary key check (id = 1), folded_no bigint not null);
  insert into session_totals_state values (1, 0);
`;

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
      await client.runScript(SCHEMA, SETUP_TIMEOUT_MS);
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
