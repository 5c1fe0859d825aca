import { FloeError } from '@floe-rl/core';

/**
 * Version number of the tables' format, which is stored in every database. A database with another number is refused. Earlier formats
 * belonged to versions that were never released, so there is no code that converts them.
 */
export const SCHEMA_FORMAT = 17;

/** The SQL of the tables that differs between SQLite and PostgreSQL: types, storage options, triggers, and the index of words. */
export type SchemaDialect = {
  /** Type of a number that the database assigns to each new row. The type includes `primary key`. Numbers increase and are never reused. */
  readonly serial: string;
  /** Type of an integer of up to 53 bits. The type `integer` has only 32 bits in PostgreSQL. */
  readonly bigint: string;
  /** Type of a floating-point number with 64 bits. */
  readonly double: string;
  /** Type of a text that is compared by its bytes, as SQLite and JavaScript do. By default, PostgreSQL would compare by its locale. */
  readonly bytewise: string;
  /** Returns the SQL after the columns of a table. `options` are the table's own options for each database. */
  readonly storage: (options: { readonly sqlite?: string; readonly postgres?: string }) => string;
  /** Triggers that write each change of the numbers of tasks to `task_counts`. */
  readonly countTasks: string;
  /** Trigger that adds each new result to `uncollected`. */
  readonly addUncollected: string;
  /** Triggers that write each change of a group to `batch_group_changes`. */
  readonly recordGroupChanges: string;
  /** The table `session_words`, which finds facts by words, with its index. Its key is the number of the fact. */
  readonly sessionWords: string;
};

/**
 * Settings of `sessions` in PostgreSQL. The defaults of autovacuum depend on the number of ended sessions, but the queue changes as fast in a
 * large table as in a small one.
 */
const SESSIONS_STORAGE = `fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000`;

/**
 * Returns the SQL that creates all tables and indexes in an empty database. Partial indexes serve the frequent queries. The conditions of
 * these indexes are written exactly as in the statements of this folder, because otherwise SQLite would not use the indexes.
 */
export function schemaSql(dialect: SchemaDialect): string {
  const { serial, bigint, double, bytewise, storage } = dialect;
  const strict = storage({});
  // Free space in the pages of PostgreSQL, so that an updated row stays in its page and no index changes.
  const updatedOften = storage({ postgres: 'fillfactor = 50' });
  return `
  create table tasks (
    order_no ${serial},
    task_id ${bytewise} not null unique,
    idempotency_key ${bytewise} unique,
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
    reward_sum ${double} not null,
    reward_count integer not null,
    callback_url text,
    deadline_ms ${double},
    ended_ms ${double},
    created_at text not null
  ) ${storage({ postgres: 'fillfactor = 70' })};
  create index tasks_by_status on tasks (status, order_no);
  create table task_counts (status text not null, tasks ${bigint} not null) ${strict};
  ${dialect.countTasks}
  create index tasks_deadline on tasks (deadline_ms) where status = 'running' and deadline_ms is not null;
  create index tasks_cancelled on tasks (order_no) where status = 'cancelled' and ended_ms is null;
  create index tasks_ended on tasks (ended_ms) where ended_ms is not null;

  create table sessions (
    queue_order ${serial},
    session_id ${bytewise} not null unique,
    task_id ${bytewise} not null,
    sample_index integer not null,
    status text not null,
    trainer ${bytewise} not null,
    priority integer not null,
    attempt integer not null,
    max_attempts integer not null,
    epoch integer not null,
    node_id text,
    lease_expires_ms ${double},
    expected_ms ${double} not null,
    memory_mb integer not null,
    avoid_node text,
    avoid_until_ms ${double} not null,
    not_before_ms ${double} not null,
    queued_since_ms ${double} not null,
    turns integer not null,
    sampled_tokens ${bigint} not null,
    cancel_requested integer not null,
    unusable text,
    summary text,
    created_at text not null,
    updated_at text not null,
    unique (task_id, sample_index)
  ) ${storage({ postgres: SESSIONS_STORAGE })};
  create index sessions_fifo on sessions (trainer, priority desc, queue_order) where status = 'QUEUED';
  create index sessions_longest on sessions (trainer, priority desc, expected_ms desc, queue_order)
    where status = 'QUEUED';
  create index sessions_leased on sessions (lease_expires_ms) where lease_expires_ms is not null;
  create index sessions_held on sessions (node_id) where lease_expires_ms is not null;
  create index sessions_cancelled on sessions (node_id) where cancel_requested = 1;
  create index sessions_waiting on sessions (task_id, session_id) where status = 'QUEUED';
  create index sessions_unusable on sessions (task_id, unusable) where unusable is not null;

  create table results (
    cursor ${serial},
    session_id ${bytewise} not null unique,
    task_id ${bytewise} not null,
    trainer ${bytewise} not null,
    trajectory_ref ${bytewise},
    trajectory_bytes ${bigint} not null,
    completions_ref ${bytewise},
    completions_bytes ${bigint} not null,
    artifacts_ref ${bytewise},
    artifacts_bytes ${bigint} not null
  ) ${strict};
  create index results_by_task on results (task_id, cursor);
  create index results_by_trainer on results (trainer, cursor);
  create index results_trajectory on results (trajectory_ref) where trajectory_ref is not null;
  create index results_completions on results (completions_ref) where completions_ref is not null;
  create index results_artifacts on results (artifacts_ref) where artifacts_ref is not null;

  create table uncollected (
    cursor ${bigint} primary key,
    task_id ${bytewise} not null,
    trainer ${bytewise} not null,
    bytes ${bigint} not null
  ) ${strict};
  create index uncollected_by_task on uncollected (task_id);
  create index uncollected_by_trainer on uncollected (trainer, cursor);
  ${dialect.addUncollected}

  create table deliveries (
    session_id ${bytewise} not null,
    epoch integer not null,
    kind text not null,
    digest text not null,
    summary text,
    trajectory_ref ${bytewise},
    completions_ref ${bytewise},
    artifacts_ref ${bytewise},
    delivered_at text not null,
    primary key (session_id, epoch)
  ) ${strict};
  create index deliveries_trajectory on deliveries (trajectory_ref) where trajectory_ref is not null;
  create index deliveries_completions on deliveries (completions_ref) where completions_ref is not null;
  create index deliveries_artifacts on deliveries (artifacts_ref) where artifacts_ref is not null;

  create table nodes (
    node_id ${bytewise} primary key,
    instance text not null,
    takeovers integer not null,
    registration text not null,
    metrics text not null,
    engines text,
    draining integer not null,
    refuses text,
    claims text,
    last_seen_ms ${double} not null,
    registered_at text not null,
    last_heartbeat text not null
  ) ${updatedOften};
  create table node_engines (node_id ${bytewise} primary key, info text not null) ${strict};

  create table callbacks (
    task_id ${bytewise} primary key,
    url text not null,
    tries integer not null,
    next_try_ms ${double} not null,
    last_error text,
    delivered_at text
  ) ${strict};
  create index callbacks_due on callbacks (next_try_ms) where delivered_at is null;

  create table tombstones (task_id ${bytewise} primary key, expires_ms ${double} not null) ${strict};

  create table engines (
    engine_id ${bytewise} primary key,
    spec text not null,
    registered_at text not null
  ) ${strict};
  create table engine_state (
    id integer primary key check (id = 1),
    revision integer not null,
    paused text,
    while_paused text not null,
    policy_version text,
    removed text not null
  ) ${strict};
  insert into engine_state values (1, 0, null, 'hold', null, '[]');

  create table service_time (id integer primary key check (id = 1), now_ms ${double} not null) ${updatedOften};
  insert into service_time values (1, 0);

  create table durations (
    duration_key ${bytewise} primary key,
    mean_ms ${double} not null,
    samples integer not null
  ) ${updatedOften};

  create table aliases (
    api text not null,
    alias ${bytewise} not null,
    task_id ${bytewise} not null unique,
    primary key (api, alias)
  ) ${strict};

  create table consumers (
    consumer ${bytewise} primary key,
    trainer text not null,
    cursor ${bigint} not null
  ) ${strict};

  create table batch_streams (
    order_no ${serial},
    batch_id ${bytewise} not null unique,
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
    source_retry_ms ${double} not null,
    ended_ms ${double},
    created_at text not null
  ) ${strict};
  create index batch_streams_by_status on batch_streams (status, order_no);

  create table batch_rows (
    batch_id ${bytewise} not null,
    row_index integer not null,
    problem text,
    last_epoch integer,
    mean_reward ${double},
    last_result text,
    rejections integer not null,
    retired integer not null,
    fields text not null,
    primary key (batch_id, row_index)
  ) ${strict};
  create index batch_rows_invalid on batch_rows (batch_id, row_index) where problem is not null;
  create index batch_rows_unsampled on batch_rows (batch_id, retired) where (problem is not null or retired = 1);

  create table batch_plans (
    batch_id ${bytewise} not null,
    epoch integer not null,
    rows text not null,
    primary key (batch_id, epoch)
  ) ${strict};

  create table batch_groups (
    batch_id ${bytewise} not null,
    group_no integer not null,
    task_id ${bytewise} not null unique,
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
    mean_reward ${double},
    sessions integer not null,
    sampled_tokens ${bigint} not null,
    staleness text,
    primary key (batch_id, group_no)
  ) ${strict};
  create index batch_groups_by_state on batch_groups (batch_id, state, group_no);
  create index batch_groups_by_batch on batch_groups (batch_id, batch_no, group_no) where batch_no is not null;
  create index batch_groups_repeat on batch_groups (batch_id, group_no) where repeat = 1;

  create table batch_group_changes (
    batch_id ${bytewise} not null,
    state text not null,
    reason text,
    groups integer not null,
    sessions integer not null,
    resolved integer not null,
    sampled_tokens ${bigint} not null
  ) ${strict};
  create index batch_group_changes_by_stream on batch_group_changes (batch_id);
  ${dialect.recordGroupChanges}

  create table session_facts (
    fact_no ${serial},
    session_id ${bytewise} not null unique,
    task_id ${bytewise} not null,
    sample_index integer not null,
    trainer ${bytewise} not null,
    harness ${bytewise} not null,
    agent ${bytewise},
    source ${bytewise},
    split ${bytewise},
    outcome ${bytewise} not null,
    unusable ${bytewise},
    reward ${double},
    version ${bytewise},
    first_version ${bytewise},
    dialect ${bytewise},
    engine ${bytewise},
    node_id ${bytewise},
    attempt integer not null,
    turns integer not null,
    completions integer not null,
    sampled_tokens ${bigint} not null,
    trained_tokens ${bigint} not null,
    traces integer not null,
    queued_ms ${double},
    init_ms ${double},
    ready_ms ${double},
    running_ms ${double},
    postrun_ms ${double},
    total_ms ${double},
    engine_ms ${double},
    sandbox_ms ${double},
    ended_ms ${bigint} not null,
    measures ${bytewise} not null
  ) ${strict};
  create index session_facts_by_task on session_facts (task_id, fact_no);
  create index session_facts_by_end on session_facts (ended_ms);

  ${dialect.sessionWords}

  create table session_totals (
    totals_no ${serial},
    hour_ms ${bigint} not null,
    trainer ${bytewise} not null,
    harness ${bytewise} not null,
    source ${bytewise} not null,
    outcome ${bytewise} not null,
    version ${bytewise} not null,
    dialect ${bytewise} not null,
    engine ${bytewise} not null,
    usable integer not null,
    sessions ${bigint} not null,
    rewards ${bigint} not null,
    reward_sum ${double} not null,
    reward_square_sum ${double} not null,
    turns ${bigint} not null,
    sampled_tokens ${bigint} not null,
    trained_tokens ${bigint} not null,
    timed ${bigint} not null,
    total_ms ${double} not null,
    queued ${bigint} not null,
    queued_ms ${double} not null,
    engine_ms ${double} not null,
    sandbox_ms ${double} not null,
    unique (hour_ms, trainer, harness, source, outcome, version, dialect, engine, usable)
  ) ${updatedOften};
  create table session_measure_totals (
    totals_no ${bigint} not null,
    kind ${bytewise} not null,
    name ${bytewise} not null,
    bin integer not null,
    count ${bigint} not null,
    failures ${bigint} not null,
    sum ${double} not null,
    square_sum ${double} not null,
    primary key (totals_no, kind, name, bin)
  ) ${storage({ postgres: 'fillfactor = 50', sqlite: 'without rowid' })};
  create table session_totals_state (id integer primary key check (id = 1), folded_no ${bigint} not null) ${strict};
  insert into session_totals_state values (1, 0);
`;
}

/**
 * Creates the error for a database with another format. `database` names the database, and `remedy` states how to start with an empty
 * database.
 */
export function wrongFormat(database: string, format: number, remedy: string): FloeError {
  const comparison = `the database ${database} has format ${format}, and this floe needs format ${SCHEMA_FORMAT}`;
  const advice =
    format > SCHEMA_FORMAT
      ? `a newer floe has written it: run that version, or ${remedy}`
      : `format ${format} was never released and cannot be converted: ${remedy}`;
  return new FloeError('setup_failed', `${comparison}; ${advice}`, { format, expected_format: SCHEMA_FORMAT });
}
