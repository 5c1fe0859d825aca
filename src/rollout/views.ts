import { FloeError } from '../core/errors.ts';
import { isTerminal } from '../core/session-state.ts';
import type {
  GroupReport,
  NodeInfo,
  RolloutStatus,
  SessionStatus,
  SessionSummary,
  SessionView,
  TaskRequest,
  TaskStatus,
  TaskSummary,
  UnusableReason,
} from '../schema/index.ts';
import { sessionStatusSchema } from '../schema/index.ts';
import type { ResultWithSummary, SessionRow, TaskRow } from '../store/index.ts';
import { shownConfig } from './config.ts';
import { change, type RolloutContext } from './context.ts';
import { cancelSessions } from './endings.ts';
import { listNodes } from './nodes.ts';
import { unknownTask } from './tasks.ts';

export type LoadedTask = {
  readonly task: TaskRow;
  readonly unusable: ReadonlyMap<UnusableReason, number>;
  readonly results: readonly ResultWithSummary[];
};

/** A task with its finished sessions, in the order in which they finished. */
export async function loadTask(context: RolloutContext, taskId: string): Promise<LoadedTask> {
  return context.store.transaction(async (tables) => {
    const task = await tables.tasks.get(taskId);
    if (task === undefined) throw unknownTask(taskId);
    return { task, unusable: await tables.sessions.unusable(taskId), results: await tables.results.ofTask(taskId) };
  });
}

export function taskStatus({ task, unusable, results }: LoadedTask): TaskStatus {
  return {
    task_id: task.task_id,
    status: task.status,
    total_sessions: task.total_sessions,
    completed_sessions: task.completed_sessions,
    group: groupReport(task, unusable),
    results: results.map((result) => JSON.parse(result.summary) as SessionSummary),
  };
}

/** The status of a task that was cancelled before it was submitted. */
export function unknownCancelled(taskId: string): TaskStatus {
  const group = { requested: 0, usable: 0, in_baseline: 0, unusable: {}, open: 0, refilled: 0, early_stopped: false };
  return { task_id: taskId, status: 'cancelled', total_sessions: 0, completed_sessions: 0, group, results: [] };
}

function groupReport(task: TaskRow, unusable: LoadedTask['unusable']): GroupReport {
  return {
    requested: task.total_sessions - task.refilled,
    usable: task.usable_sessions,
    in_baseline: task.baseline_sessions,
    unusable: Object.fromEntries(unusable),
    open: task.total_sessions - task.completed_sessions,
    refilled: task.refilled,
    early_stopped: task.early_stopped === 1,
  };
}

export function taskSummary(task: TaskRow): TaskSummary {
  return {
    task_id: task.task_id,
    status: task.status,
    harness: task.harness,
    created_at: task.created_at,
    total_sessions: task.total_sessions,
    completed_sessions: task.completed_sessions,
    mean_reward: task.reward_count === 0 ? null : task.reward_sum / task.reward_count,
  };
}

export function sessionView(row: SessionRow): SessionView {
  return {
    session_id: row.session_id,
    task_id: row.task_id,
    sample_index: row.sample_index,
    status: row.status,
    attempt: row.attempt,
    epoch: row.epoch,
    node_id: row.node_id,
    turns: row.turns,
    sampled_tokens: row.sampled_tokens,
    created_at: row.created_at,
    updated_at: row.updated_at,
    summary: row.summary === null ? null : (JSON.parse(row.summary) as SessionSummary),
  };
}

export async function sessionsOfTask(context: RolloutContext, taskId: string): Promise<SessionView[]> {
  return context.store.transaction(async (tables) => {
    if ((await tables.tasks.get(taskId)) === undefined) throw unknownTask(taskId);
    return (await tables.sessions.ofTask(taskId)).map(sessionView);
  });
}

export async function oneSession(context: RolloutContext, sessionId: string): Promise<SessionView> {
  const row = await context.store.transaction((tables) => tables.sessions.get(sessionId));
  if (row === undefined) throw unknownSession(sessionId);
  return sessionView(row);
}

/** Cancels one session; one that has ended stays as it is. */
export async function cancelOneSession(context: RolloutContext, sessionId: string): Promise<SessionView> {
  return change(context, async (tables, effects) => {
    const row = await tables.sessions.get(sessionId);
    if (row === undefined) throw unknownSession(sessionId);
    if (isTerminal(row.status)) return sessionView(row);
    const task = await tables.tasks.get(row.task_id);
    if (task === undefined) throw unknownTask(row.task_id);
    await cancelSessions(context, tables, effects, [row], JSON.parse(task.request) as TaskRequest);
    return sessionView((await tables.sessions.get(sessionId)) ?? row);
  });
}

/** The bytes of a finished session as its node delivered them. Throws `not_found` when there are none. */
export async function sessionBlob(
  context: RolloutContext,
  sessionId: string,
  what: 'trajectory' | 'completions' | 'artifacts',
): Promise<Buffer> {
  const { row, result } = await context.store.transaction(async (tables) => ({
    row: await tables.sessions.get(sessionId),
    result: await tables.results.ofSession(sessionId),
  }));
  if (row === undefined) throw unknownSession(sessionId);
  const ref = result?.[`${what}_ref`] ?? null;
  if (ref !== null) return context.blobs.get(ref);
  const reason = what === 'artifacts' ? whyWithoutArtifacts(row) : null;
  const message = `session ${sessionId} is ${row.status} and has no ${what}${reason === null ? '' : `: ${reason}`}`;
  throw new FloeError('not_found', message, { session_id: sessionId, status: row.status, reason });
}

function whyWithoutArtifacts(row: SessionRow): string | null {
  if (row.summary === null) return null;
  return (JSON.parse(row.summary) as SessionSummary).artifacts?.omitted ?? null;
}

export async function rolloutStatus(context: RolloutContext): Promise<RolloutStatus> {
  const nodes: NodeInfo[] = await listNodes(context);
  const { tasks, sessions, undelivered, loads } = await context.store.transaction(async (tables) => ({
    tasks: await tables.tasks.countByStatus(),
    sessions: await tables.sessions.countByStatus(),
    undelivered: await tables.callbacks.countUndelivered(),
    loads: await tables.sessions.loads(),
  }));
  return {
    tasks: {
      running: tasks.get('running') ?? 0,
      completed: tasks.get('completed') ?? 0,
      cancelled: tasks.get('cancelled') ?? 0,
    },
    sessions: Object.fromEntries(
      sessionStatusSchema.options.map((status) => [status, sessions.get(status) ?? 0]),
    ) as Record<SessionStatus, number>,
    nodes,
    undelivered_callbacks: undelivered,
    limits: shownConfig(context.config),
    trainers: loads.map((load) => ({ ...load, held_back: null })),
    counters: context.counters.all(),
    bottleneck: null,
  };
}

function unknownSession(sessionId: string): FloeError {
  return new FloeError('not_found', `session ${sessionId} is not known`, { session_id: sessionId });
}
