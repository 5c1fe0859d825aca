/**
 * Every change of the database's shape, in order. A migration that was released is never edited; the number of the last
 * one applied is the database's `user_version`.
 */
export const MIGRATIONS: readonly { readonly number: number; readonly sql: string }[] = [
  {
    number: 1,
    sql: `
      create table tasks (
        order_no integer primary key autoincrement,
        task_id text not null unique,
        idempotency_key text unique,
        digest text not null,
        request text not null,
        status text not null,
        harness text not null,
        total_sessions integer not null,
        completed_sessions integer not null,
        reward_sum real not null,
        reward_count integer not null,
        callback_url text,
        created_at text not null
      ) strict;
      create index tasks_by_status on tasks (status, order_no);

      create table sessions (
        queue_order integer primary key autoincrement,
        session_id text not null unique,
        task_id text not null,
        sample_index integer not null,
        status text not null,
        priority integer not null,
        attempt integer not null,
        max_attempts integer not null,
        epoch integer not null,
        node_id text,
        lease_expires_ms real,
        not_before_ms real not null,
        queued_since_ms real not null,
        turns integer not null,
        sampled_tokens integer not null,
        cancel_requested integer not null,
        summary text,
        cursor integer,
        created_at text not null,
        updated_at text not null,
        unique (task_id, sample_index)
      ) strict;
      create index sessions_queued on sessions (priority desc, queue_order) where status = 'QUEUED';
      create index sessions_leased on sessions (lease_expires_ms) where lease_expires_ms is not null;
      create index sessions_cancelled on sessions (node_id) where cancel_requested = 1;
      create index sessions_by_status on sessions (status);

      create table results (
        cursor integer primary key autoincrement,
        session_id text not null unique,
        task_id text not null,
        trajectory_ref text,
        trajectory_bytes integer not null,
        completions_ref text,
        completions_bytes integer not null
      ) strict;
      create index results_by_task on results (task_id, cursor);

      create table deliveries (
        session_id text not null,
        epoch integer not null,
        digest text not null,
        summary text not null,
        trajectory_ref text,
        completions_ref text,
        delivered_at text not null,
        primary key (session_id, epoch)
      ) strict;

      create table nodes (
        node_id text primary key,
        registration text not null,
        metrics text not null,
        draining integer not null,
        last_seen_ms real not null,
        registered_at text not null,
        last_heartbeat text not null
      ) strict;

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

      create table service_time (id integer primary key check (id = 1), now_ms real not null) strict;
      insert into service_time (id, now_ms) values (1, 0);
    `,
  },
  {
    number: 2,
    sql: `
      alter table results add column artifacts_ref text;
      alter table results add column artifacts_bytes integer not null default 0;
      alter table deliveries add column artifacts_ref text;
    `,
  },
  {
    number: 3,
    sql: `
      alter table nodes add column engines text;
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
    `,
  },
  {
    number: 4,
    sql: `
      alter table tasks add column trainer text not null default 'default';
      alter table tasks add column usable_sessions integer not null default 0;
      alter table tasks add column baseline_sessions integer not null default 0;
      alter table tasks add column refilled integer not null default 0;
      alter table tasks add column refills_left integer not null default 0;
      alter table tasks add column early_stopped integer not null default 0;
      alter table tasks add column deadline_ms real;
      alter table tasks add column ended_ms real;
      update tasks set ended_ms = (select now_ms from service_time) where completed_sessions = total_sessions;
      create index tasks_deadline on tasks (deadline_ms) where status = 'running' and deadline_ms is not null;
      create index tasks_cancelled on tasks (order_no) where status = 'cancelled' and ended_ms is null;
      create index tasks_ended on tasks (ended_ms) where ended_ms is not null;

      alter table sessions add column trainer text not null default 'default';
      alter table sessions add column expected_ms real not null default 0;
      alter table sessions add column avoid_node text;
      alter table sessions add column avoid_until_ms real not null default 0;
      alter table sessions add column unusable text;
      drop index sessions_queued;
      create index sessions_fifo on sessions (trainer, priority desc, queue_order) where status = 'QUEUED';
      create index sessions_longest on sessions (trainer, priority desc, expected_ms desc, queue_order)
        where status = 'QUEUED';
      create index sessions_held on sessions (node_id) where lease_expires_ms is not null;

      alter table results add column trainer text not null default 'default';
      alter table results add column collected integer not null default 0;
      create index results_by_trainer on results (trainer, cursor);
      create index results_uncollected on results (trainer, cursor) where collected = 0;
      create index results_trajectory on results (trajectory_ref) where trajectory_ref is not null;
      create index results_completions on results (completions_ref) where completions_ref is not null;
      create index results_artifacts on results (artifacts_ref) where artifacts_ref is not null;

      alter table deliveries add column kind text not null default 'result';
      create index deliveries_trajectory on deliveries (trajectory_ref) where trajectory_ref is not null;
      create index deliveries_completions on deliveries (completions_ref) where completions_ref is not null;
      create index deliveries_artifacts on deliveries (artifacts_ref) where artifacts_ref is not null;

      alter table nodes add column instance text not null default 'none';
      alter table nodes add column takeovers integer not null default 0;

      create table durations (
        duration_key text primary key,
        mean_ms real not null,
        samples integer not null
      ) strict;

      create table consumers (
        consumer text primary key,
        trainer text not null,
        cursor integer not null
      ) strict;
    `,
  },
  {
    number: 5,
    sql: `
      create index sessions_waiting on sessions (task_id, session_id) where status = 'QUEUED';
      create index sessions_unusable on sessions (task_id, unusable) where unusable is not null;
      alter table sessions drop column cursor;
      alter table nodes add column refuses text;
      alter table nodes add column claims text;
    `,
  },
];
