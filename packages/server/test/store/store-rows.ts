import type { NewFactRow, NewSessions, StoreTables, TaskRow } from '../../src/store/index.ts';

export const AT = '2026-01-01T00:00:00.000Z';

export function taskRow(taskId: string, fields: Partial<TaskRow> = {}): TaskRow {
  return {
    task_id: taskId,
    idempotency_key: null,
    digest: 'd',
    request: '{}',
    status: 'running',
    harness: 'shell',
    trainer: 'default',
    total_sessions: 1,
    completed_sessions: 0,
    usable_sessions: 0,
    baseline_sessions: 0,
    refilled: 0,
    refills_left: 0,
    early_stopped: 0,
    reward_sum: 0,
    reward_count: 0,
    callback_url: null,
    deadline_ms: null,
    ended_ms: null,
    created_at: AT,
    ...fields,
  };
}

export function factRow(sessionId: string, fields: Partial<NewFactRow> = {}): NewFactRow {
  return {
    session_id: sessionId,
    task_id: 't',
    sample_index: 0,
    trainer: 'default',
    harness: 'shell',
    agent: null,
    source: null,
    split: null,
    outcome: 'completed',
    unusable: null,
    reward: null,
    version: null,
    first_version: null,
    dialect: null,
    engine: null,
    node_id: null,
    attempt: 1,
    turns: 1,
    completions: 1,
    sampled_tokens: 0,
    trained_tokens: 0,
    traces: 1,
    queued_ms: null,
    init_ms: null,
    ready_ms: null,
    running_ms: null,
    postrun_ms: null,
    total_ms: null,
    engine_ms: null,
    sandbox_ms: null,
    ended_ms: 0,
    measures: [],
    ...fields,
  };
}

export async function addSessions(
  tables: StoreTables,
  taskId: string,
  ids: readonly string[],
  fields: Partial<NewSessions> = {},
): Promise<void> {
  await tables.sessions.insert(
    {
      task_id: taskId,
      trainer: 'default',
      expected_ms: 0,
      memory_mb: 100,
      priority: 0,
      max_attempts: 3,
      not_before_ms: 0,
      queued_since_ms: 0,
      created_at: AT,
      ...fields,
    },
    ids.map((session_id, sample_index) => ({ session_id, sample_index })),
  );
}

export const named = (session_id: string, trainer = 'default') => ({ session_id, task_id: 'a', trainer });

export const NO_BLOBS = { trajectory: null, completions: null, artifacts: null };

export const blob = (ref: string, bytes = 1) => ({ ref, bytes });
