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
];
