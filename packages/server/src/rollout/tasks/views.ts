import { FloeError } from '@floe-rl/core';
import type { SessionSummary, TaskState, TaskStatus, TaskSummary, UnusableReason } from '@floe-rl/core/schema';
import type { ResultWithSummary, TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { groupReport } from './groups.ts';

/** Maximum number of results that one query reads, because a task may have 100,000 of them. */
const PAGE_RESULTS = 200;
/** Maximum number of results that the reply to a cancellation lists. */
const CANCEL_REPLY_RESULTS = 1000;

/** The state of a task when it was read, without its results. */
export type LoadedTask = {
  readonly head: Omit<TaskStatus, 'results'>;
  /** Cursor of the newest result at the time of the read. Later results are not part of this view of the task. */
  readonly upToCursor: number;
};

/** Reads the state of a task. Throws `not_found` for an unknown task. */
export async function loadTask(context: RolloutContext, taskId: string): Promise<LoadedTask> {
  return context.store.read(async (tables) => {
    const task = await tables.tasks.get(taskId);
    if (task === undefined) throw unknownTask(taskId);
    const unusable = await tables.sessions.unusable(taskId);
    return { head: taskHead(task, unusable), upToCursor: await tables.results.newestCursor() };
  });
}

/**
 * Waits until a task has ended. Resolves earlier when `waitMs` has passed, when `disconnected` is aborted, or when the server closes. Throws
 * `not_found` for an unknown task.
 */
export async function waitForEnd(
  context: RolloutContext,
  taskId: string,
  waitMs: number,
  disconnected: AbortSignal,
): Promise<void> {
  await context.wakeups.poll(`task:${taskId}`, waitMs, disconnected, async () => {
    const task = await context.store.read((tables) => tables.tasks.get(taskId));
    if (task === undefined) throw unknownTask(taskId);
    return task.ended_ms ?? undefined;
  });
}

function taskHead(task: TaskRow, unusable: ReadonlyMap<UnusableReason, number>): LoadedTask['head'] {
  return {
    task_id: task.task_id,
    status: shownState(task),
    total_sessions: task.total_sessions,
    completed_sessions: task.completed_sessions,
    group: groupReport(task, unusable),
  };
}

/**
 * Returns the task state that clients see. A task that stops early counts as running until all its sessions have ended, and afterwards as
 * completed.
 */
export function shownState(task: TaskRow): TaskState {
  return task.early_stopped === 1 && task.ended_ms === null ? 'running' : task.status;
}

/** Yields the results of a task up to a cursor, in the order in which the sessions ended. */
export async function* taskResults(
  context: RolloutContext,
  taskId: string,
  upToCursor: number,
): AsyncGenerator<ResultWithSummary> {
  for (let after = 0; after < upToCursor; ) {
    const page = { after, limit: PAGE_RESULTS };
    const rows = await context.store.read((tables) => tables.results.ofTask(taskId, page));
    yield* rows.filter((row) => row.cursor <= upToCursor);
    if (rows.length < PAGE_RESULTS) return;
    after = rows.at(-1)?.cursor ?? upToCursor;
  }
}

/**
 * Returns the reply to a cancellation. Of a large task it lists only the first {@link CANCEL_REPLY_RESULTS} results. Throws `not_found` for
 * an unknown task.
 */
export async function cancelReply(context: RolloutContext, taskId: string): Promise<TaskStatus> {
  return context.store.read(async (tables) => {
    const task = await tables.tasks.get(taskId);
    if (task === undefined) throw unknownTask(taskId);
    const head = taskHead(task, await tables.sessions.unusable(taskId));
    const results = await tables.results.ofTask(taskId, { after: 0, limit: CANCEL_REPLY_RESULTS });
    return { ...head, results: results.map((result) => JSON.parse(result.summary) as SessionSummary) };
  });
}

/** Returns the status of a task that was cancelled before it was submitted. */
export function cancelledBeforeSubmit(taskId: string): TaskStatus {
  const group = { requested: 0, usable: 0, in_baseline: 0, unusable: {}, open: 0, refilled: 0, early_stopped: false };
  return { task_id: taskId, status: 'cancelled', total_sessions: 0, completed_sessions: 0, group, results: [] };
}

export function taskSummary(task: TaskRow): TaskSummary {
  return {
    task_id: task.task_id,
    status: shownState(task),
    harness: task.harness,
    created_at: task.created_at,
    total_sessions: task.total_sessions,
    completed_sessions: task.completed_sessions,
    mean_reward: task.reward_count === 0 ? null : task.reward_sum / task.reward_count,
  };
}

export function unknownTask(taskId: string): FloeError {
  return new FloeError('not_found', `task ${taskId} is not known`, { task_id: taskId });
}
