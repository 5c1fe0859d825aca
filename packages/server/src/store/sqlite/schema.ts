import { closeSync, existsSync, openSync, readSync } from 'node:fs';
import type Libsql from 'libsql';
import { SCHEMA_FORMAT, wrongFormat } from '../sql/database.ts';

/** First bytes of every SQLite file (https://www.sqlite.org/fileformat.html). */
const MAGIC = Buffer.from('SQLite format 3\0');
/** Position in bytes of the number `user_version` in an SQLite file (https://www.sqlite.org/fileformat.html). */
const USER_VERSION_OFFSET = 60;
const HEADER_BYTES = 64;

/**
 * The SQL that creates all tables and indexes. Partial indexes serve the frequent queries. The conditions of these indexes are written
 * exactly as in the statements of `store/sql/`, because otherwise SQLite would not use the indexes.
 */
const SCHEMA = `
  create table tasks (
    order_no integer primary key autoincrement,
    task_id text not null unique,
    idempotency_key text unique,
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
    reward_sum real not null,
    reward_count integer not null,
    callback_url text,
    deadline_ms real,
    ended_ms real,
    created_at text not null
  ) strict;
  create index tasks_by_status on tasks (status, order_no);
  create table task_counts (status text not null, tasks integer not null) strict;
  create trigger task_added after insert on tasks begin
    insert into task_counts values (new.status, 1);
  end;
  create trigger task_changed after update of status on tasks begin
    insert into task_counts values (old.status, -1), (new.status, 1);
  end;
  create trigger task_removed after delete on tasks begin
    insert into task_counts values (old.status, -1);
  end;
  create index tasks_deadline on tasks (deadline_ms) where status = 'running' and deadline_ms is not null;
  create index tasks_cancelled on tasks (order_no) where status = 'cancelled' and ended_ms is null;
  create index tasks_ended on tasks (ended_ms) where ended_ms is not null;

  create table sessions (
    queue_order integer primary key autoincrement,
    session_id text not null unique,
    task_id text not null,
    sample_index integer not null,
    status text not null,
    trainer text not null,
    priority integer not null,
    attempt integer not null,
    max_attempts integer not null,
    epoch integer not null,
    node_id text,
    lease_expires_ms real,
    expected_ms real not null,
    memory_mb integer not null,
    avoid_node text,
    avoid_until_ms real not null,
    not_before_ms real not null,
    queued_since_ms real not null,
    turns integer not null,
    sampled_tokens integer not null,
    cancel_requested integer not null,
    unusable text,
    summary text,
    created_at text not null,
    updated_at text not null,
    unique (task_id, sample_index)
  ) strict;
  create index sessions_fifo on sessions (trainer, priority desc, queue_order) where status = 'QUEUED';
  create index sessions_longest on sessions (trainer, priority desc, expected_ms desc, queue_order)
    where status = 'QUEUED';
  create index sessions_leased on sessions (lease_expires_ms) where lease_expires_ms is not null;
  create index sessions_held on sessions (node_id) where lease_expires_ms is not null;
  create index sessions_cancelled on sessions (node_id) where cancel_requested = 1;
  create index sessions_waiting on sessions (task_id, session_id) where status = 'QUEUED';
  create index sessions_unusable on sessions (task_id, unusable) where unusable is not null;

  create table results (
    cursor integer primary key autoincrement,
    session_id text not null unique,
    task_id text not null,
    trainer text not null,
    trajectory_ref text,
    trajectory_bytes integer not null,
    completions_ref text,
    completions_bytes integer not null,
    artifacts_ref text,
    artifacts_bytes integer not null
  ) strict;
  create index results_by_task on results (task_id, cursor);
  create index results_by_trainer on results (trainer, cursor);
  create index results_trajectory on results (trajectory_ref) where trajectory_ref is not null;
  create index results_completions on results (completions_ref) where completions_ref is not null;
  create index results_artifacts on results (artifacts_ref) where artifacts_ref is not null;

  create table uncollected (
    cursor integer primary key,
    task_id text not null,
    trainer text not null,
    bytes integer not null
  ) strict;
  create index uncollected_by_task on uncollected (task_id);
  create index uncollected_by_trainer on uncollected (trainer, cursor);
  create trigger result_added after insert on results begin
    insert into uncollected values (new.cursor, new.task_id, new.trainer,
      new.trajectory_bytes + new.completions_bytes + new.artifacts_bytes);
  end;

  create table deliveries (
    session_id text not null,
    epoch integer not null,
    kind text not null,
    digest text not null,
    summary text,
    trajectory_ref text,
    completions_ref text,
    artifacts_ref text,
    delivered_at text not null,
    primary key (session_id, epoch)
  ) strict;
  create index deliveries_trajectory on deliveries (trajectory_ref) where trajectory_ref is not null;
  create index deliveries_completions on deliveries (completions_ref) where completions_ref is not null;
  create index deliveries_artifacts on deliveries (artifacts_ref) where artifacts_ref is not null;

  create table nodes (
    node_id text primary key,
    instance text not null,
    takeovers integer not null,
    registration text not null,
    metrics text not null,
    engines text,
    draining integer not null,
    refuses text,
    claims text,
    last_seen_ms real not null,
    registered_at text not null,
    last_heartbeat text not null
  ) strict;
  create table node_engines (node_id text primary key, info text not null) strict;

  create table callbacks (
    task_id text primary key,
    url text not null,
    tries integer not null,
    next_try_ms real not null,
    last_error text,
    delivered_at text
  ) strict;
  create index callbacks_due on callbacks (next_try_ms) where delivered_at is null;

  create table tombstones (task_id text primary key, expires_ms real not null) strict;

  create table engines (
    engine_id text primary key,
    spec text not null,
    registered_at text not null
  ) strict;
  create table engine_state (
    id integer primary key check (id = 1),
    revision integer not null,
    paused text,
    while_paused text not null,
    policy_version text,
    removed text not null
  ) strict;
  insert into engine_state values (1, 0, null, 'hold', null, '[]');

  create table service_time (id integer primary key check (id = 1), now_ms real not null) strict;
  insert into service_time values (1, 0);

  create table durations (
    duration_key text primary key,
    mean_ms real not null,
    samples integer not null
  ) strict;

  create table aliases (
    api text not null,
    alias text not null,
    task_id text not null unique,
    primary key (api, alias)
  ) strict;

  create table consumers (
    consumer text primary key,
    trainer text not null,
    cursor integer not null
  ) strict;

  create table batch_streams (
    order_no integer primary key autoincrement,
    batch_id text not null unique,
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
    source_retry_ms real not null,
    ended_ms real,
    created_at text not null
  ) strict;
  create index batch_streams_by_status on batch_streams (status, order_no);

  create table batch_rows (
    batch_id text not null,
    row_index integer not null,
    problem text,
    last_epoch integer,
    mean_reward real,
    last_result text,
    rejections integer not null,
    retired integer not null,
    fields text not null,
    primary key (batch_id, row_index)
  ) strict;
  create index batch_rows_invalid on batch_rows (batch_id, row_index) where problem is not null;
  create index batch_rows_unsampled on batch_rows (batch_id, retired) where (problem is not null or retired = 1);

  create table batch_plans (
    batch_id text not null,
    epoch integer not null,
    rows text not null,
    primary key (batch_id, epoch)
  ) strict;

  create table batch_groups (
    batch_id text not null,
    group_no integer not null,
    task_id text not null unique,
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
    mean_reward real,
    sessions integer not null,
    sampled_tokens integer not null,
    staleness text,
    primary key (batch_id, group_no)
  ) strict;
  create index batch_groups_by_state on batch_groups (batch_id, state, group_no);
  create index batch_groups_by_batch on batch_groups (batch_id, batch_no, group_no) where batch_no is not null;
  create index batch_groups_repeat on batch_groups (batch_id, group_no) where repeat = 1;

  create table batch_group_changes (
    batch_id text not null,
    state text not null,
    reason text,
    groups integer not null,
    sessions integer not null,
    resolved integer not null,
    sampled_tokens integer not null
  ) strict;
  create index batch_group_changes_by_stream on batch_group_changes (batch_id);
  create trigger batch_group_added after insert on batch_groups begin
    insert into batch_group_changes
      values (new.batch_id, new.state, new.reason, 1, new.sessions, new.resolved, new.sampled_tokens);
  end;
  create trigger batch_group_changed after update of state, reason, sessions, resolved, sampled_tokens on batch_groups begin
    insert into batch_group_changes values
      (old.batch_id, old.state, old.reason, -1, -old.sessions, -old.resolved, -old.sampled_tokens),
      (new.batch_id, new.state, new.reason, 1, new.sessions, new.resolved, new.sampled_tokens);
  end;

  create table session_facts (
    fact_no integer primary key autoincrement,
    session_id text not null unique,
    task_id text not null,
    sample_index integer not null,
    trainer text not null,
    harness text not null,
    agent text,
    source text,
    split text,
    outcome text not null,
    unusable text,
    reward real,
    version text,
    first_version text,
    dialect text,
    engine text,
    node_id text,
    attempt integer not null,
    turns integer not null,
    completions integer not null,
    sampled_tokens integer not null,
    trained_tokens integer not null,
    traces integer not null,
    queued_ms real,
    init_ms real,
    ready_ms real,
    running_ms real,
    postrun_ms real,
    total_ms real,
    engine_ms real,
    sandbox_ms real,
    ended_ms integer not null,
    measures text not null
  ) strict;
  create index session_facts_by_task on session_facts (task_id, fact_no);
  create index session_facts_by_end on session_facts (ended_ms);

  create virtual table session_words using fts5(
    words, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0'
  );

  create table session_totals (
    totals_no integer primary key autoincrement,
    hour_ms integer not null,
    trainer text not null,
    harness text not null,
    source text not null,
    outcome text not null,
    version text not null,
    dialect text not null,
    engine text not null,
    usable integer not null,
    sessions integer not null,
    rewards integer not null,
    reward_sum real not null,
    reward_square_sum real not null,
    turns integer not null,
    sampled_tokens integer not null,
    trained_tokens integer not null,
    timed integer not null,
    total_ms real not null,
    queued integer not null,
    queued_ms real not null,
    engine_ms real not null,
    sandbox_ms real not null,
    unique (hour_ms, trainer, harness, source, outcome, version, dialect, engine, usable)
  ) strict;
  create table session_measure_totals (
    totals_no integer not null,
    kind text not null,
    name text not null,
    bin integer not null,
    count integer not null,
    failures integer not null,
    sum real not null,
    square_sum real not null,
    primary key (totals_no, kind, name, bin)
  ) strict, without rowid;
  create table session_totals_state (id integer primary key check (id = 1), folded_no integer not null) strict;
  insert into session_totals_state values (1, 0);
`;

/**
 * Creates all tables if the database is empty. Locks the database meanwhile, because another server may be creating the tables at the same
 * time. If it fails, no table is created. Throws `setup_failed` when the database has another format.
 */
export function ensureTables(raw: Libsql.Database, path: string): void {
  if (readFormat(raw) === SCHEMA_FORMAT) return;
  raw.exec('begin immediate');
  try {
    const format = readFormat(raw);
    checkFormat(format, path);
    if (format === 0) raw.exec(`${SCHEMA}; pragma user_version = ${SCHEMA_FORMAT}`);
    raw.exec('commit');
  } catch (error) {
    if (raw.inTransaction) raw.exec('rollback');
    throw error;
  }
}

/** Throws `setup_failed` for a database format that this version of floe cannot use. The format of an empty database is 0. */
export function checkFormat(format: number, path: string): void {
  if (format === 0 || format === SCHEMA_FORMAT) return;
  throw wrongFormat(path, format, 'move the file away, or start with an empty data directory');
}

/** Returns the format number of an open database, which is stored in SQLite's `user_version`. */
export function readFormat(raw: Libsql.Database): number {
  const [row] = raw.prepare('pragma user_version').all() as { user_version: number }[];
  return row?.user_version ?? 0;
}

/**
 * Returns the format number in the header of a database file; 0 when the file does not exist. The file is read without SQLite, which would
 * create a write-ahead log next to a file that is about to be refused. A format number that is still in a write-ahead log is not found;
 * {@link readFormat} finds it after the database is opened.
 */
export function readFormatOfFile(path: string): number {
  if (!existsSync(path)) return 0;
  const header = Buffer.alloc(HEADER_BYTES);
  const file = openSync(path, 'r');
  try {
    readSync(file, header, 0, HEADER_BYTES, 0);
  } finally {
    closeSync(file);
  }
  return header.subarray(0, MAGIC.length).equals(MAGIC) ? header.readUInt32BE(USER_VERSION_OFFSET) : 0;
}
