import { move } from '../core/session-state.ts';
import type { Outcome, SessionError, SessionSummary, TaskRequest, TaskState } from '../schema/index.ts';
import type { EndedCounts, ResultBlobs, SessionRow, StoreTables } from '../store/index.ts';
import type { Effects, RolloutContext } from './context.ts';
import { serverSummary } from './summary.ts';

const NO_BLOBS: ResultBlobs = { trajectory: null, completions: null, artifacts: null };

type Ending = {
  readonly summary: SessionSummary;
  readonly blobs: ResultBlobs;
  /** Ends with this epoch, so that a result of an earlier one is refused. */
  readonly epoch?: number;
  readonly cancelRequested?: boolean;
};

/** Ends a session for good: result cursor, counters of its task and, with the last session, the task itself. */
export async function endSession(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  ending: Ending,
): Promise<number> {
  const { reward } = ending.summary;
  const cursor = await closeSession(context, tables, effects, row, ending);
  await countEnded(context, tables, effects, row.task_id, {
    sessions: 1,
    rewardSum: reward ?? 0,
    rewardCount: reward === null ? 0 : 1,
    usable: 0,
    inBaseline: 0,
  });
  return cursor;
}

async function closeSession(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  ending: Ending,
): Promise<number> {
  const { summary } = ending;
  const ended = {
    status: move(row.status, summary.status),
    turns: summary.agent?.turns ?? row.turns,
    sampled_tokens: summary.audit?.tokens.sampled ?? row.sampled_tokens,
  };
  const cursor = await tables.results.append(row, ending.blobs);
  await tables.sessions.update(row.session_id, {
    ...ended,
    epoch: ending.epoch ?? row.epoch,
    lease_expires_ms: null,
    cancel_requested: ending.cancelRequested === true ? 1 : 0,
    summary: JSON.stringify(summary),
    cursor,
    updated_at: new Date(context.clock.nowMs()).toISOString(),
  });
  effects.sessionChanged({ ...row, ...ended }, summary);
  effects.topics.add('results');
  return cursor;
}

async function countEnded(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  taskId: string,
  added: EndedCounts,
): Promise<void> {
  const task = await tables.tasks.addEnded(taskId, added);
  if (task.completed_sessions === task.total_sessions) await finishTask(context, tables, effects, task);
}

async function finishTask(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  task: { task_id: string; status: TaskState; callback_url: string | null },
): Promise<void> {
  const status = task.status === 'running' ? 'completed' : task.status;
  await tables.tasks.update(task.task_id, { status, ended_ms: context.time.nowMs() });
  effects.events.push({ type: 'task.completed', task_id: task.task_id, status });
  if (task.callback_url === null) return;
  await tables.callbacks.insert({
    task_id: task.task_id,
    url: task.callback_url,
    tries: 0,
    next_try_ms: context.time.nowMs(),
    last_error: null,
    delivered_at: null,
  });
  effects.topics.add('callbacks');
}

/** Cancels sessions of one task that have not ended. They are terminal at once; nodes are told with their next heartbeat. */
export async function cancelSessions(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  rows: readonly SessionRow[],
  task: TaskRequest,
): Promise<void> {
  for (const row of rows) {
    const leased = row.lease_expires_ms !== null;
    await closeSession(context, tables, effects, row, {
      summary: serverSummary(row, task, 'cancelled', null),
      blobs: NO_BLOBS,
      cancelRequested: leased,
    });
    if (leased && row.node_id !== null) effects.topics.add(`node:${row.node_id}`);
  }
  const [first] = rows;
  if (first === undefined) return;
  await countEnded(context, tables, effects, first.task_id, {
    sessions: rows.length,
    rewardSum: 0,
    rewardCount: 0,
    usable: 0,
    inBaseline: 0,
  });
}

/** Ends a session without a result because of the infrastructure. */
export async function giveUp(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  outcome: Outcome,
  error: SessionError,
): Promise<number> {
  const task = await requestOf(tables, row.task_id);
  return endSession(context, tables, effects, row, {
    summary: serverSummary(row, task, outcome, error),
    blobs: NO_BLOBS,
    epoch: row.epoch + 1,
  });
}

/** Puts a session back into the queue under the next epoch. */
export async function requeue(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  next: { attempt: number; delayMs: number; maxAttempts?: number },
): Promise<void> {
  const nowMs = context.time.nowMs();
  const patch = {
    status: move(row.status, 'QUEUED'),
    attempt: next.attempt,
    max_attempts: next.maxAttempts ?? row.max_attempts,
    epoch: row.epoch + 1,
    node_id: null,
    lease_expires_ms: null,
    not_before_ms: nowMs + next.delayMs,
    queued_since_ms: nowMs,
    turns: 0,
    sampled_tokens: 0,
    updated_at: new Date(context.clock.nowMs()).toISOString(),
  };
  await tables.sessions.update(row.session_id, patch);
  effects.sessionChanged({ ...row, ...patch });
  effects.topics.add('queue');
}

/** The stored request. It was parsed before it was stored, so this does not check it again. */
export async function requestOf(tables: StoreTables, taskId: string): Promise<TaskRequest> {
  const task = await tables.tasks.get(taskId);
  if (task === undefined) throw new Error(`a session names task ${taskId}, which is not stored`);
  return JSON.parse(task.request) as TaskRequest;
}
