import type { NodeInfo, SessionStatus, SessionSummary } from '@floe-rl/core/schema';
import type { AliasedTask, SessionRow, StoreTables, TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { listNodes } from '../nodes/nodes.ts';
import { requestOf } from '../tasks/groups.ts';
import { shownState } from '../tasks/views.ts';
import { polarError, polarStatus, polarTiming } from './results.ts';
import type { PolarNode, PolarSessionRow, PolarTaskRow } from './schema.ts';

/** Lists consider only this many tasks, the newest ones. */
const MAX_TASKS = 1000;
/** Maximum number of sessions that one query reads. */
const PAGE_SESSIONS = 200;
/**
 * Number of heartbeat intervals after which Polar treats a silent node as unhealthy (`src/polar/rollout/balancer.py` at fd0ca0c of the fork
 * BryanChen408/ProRL-Agent-Server). Clients get floe's own time limit divided by this number as the heartbeat interval.
 */
const STALE_FACTOR = 2.5;

/** The names that Polar's events and lists use for the states of a session. */
const STATES: Readonly<Record<SessionStatus, string>> = {
  QUEUED: 'DISPATCHING',
  LEASED: 'REGISTERED',
  INIT: 'INITIALIZING',
  READY: 'READY',
  RUNNING: 'RUNNING',
  POSTRUN: 'POST_RUN',
  COMPLETED: 'COMPLETED',
  ERROR: 'ERROR',
  TIMEOUT: 'TIMEOUT',
  CANCELLED: 'ERROR',
};

export function polarState(status: SessionStatus): string {
  return STATES[status];
}

export type TaskFilter = {
  readonly status?: string | undefined;
  readonly harness?: string | undefined;
  /** Unix time in seconds: only tasks that changed at this time or later are listed. */
  readonly since?: number | undefined;
  readonly limit: number;
};

/** Returns tasks of the Polar API, the most recently changed first. Only the newest {@link MAX_TASKS} tasks are considered. */
export async function polarTasks(context: RolloutContext, filter: TaskFilter): Promise<PolarTaskRow[]> {
  const rows = await context.store.read(async (tables) => {
    const tasks = (await tables.aliases.list('polar', MAX_TASKS)).filter(
      (task) =>
        (filter.status === undefined || shownState(task) === filter.status) &&
        (filter.harness === undefined || task.harness === filter.harness),
    );
    const shown: PolarTaskRow[] = [];
    for (const task of tasks) shown.push(await taskRow(tables, task));
    return shown;
  });
  const since = filter.since ?? Number.NEGATIVE_INFINITY;
  const changed = rows.filter((row) => row.updated_at >= since).sort((a, b) => b.updated_at - a.updated_at);
  return changed.slice(0, filter.limit);
}

async function taskRow(tables: StoreTables, task: AliasedTask): Promise<PolarTaskRow> {
  let updatedAt = secondsOf(task.created_at);
  let errored = 0;
  let traces = 0;
  let completions = 0;
  for await (const row of sessionsOf(tables, task)) {
    updatedAt = Math.max(updatedAt, secondsOf(row.updated_at));
    if (row.summary === null) continue;
    const summary = JSON.parse(row.summary) as SessionSummary;
    if (summary.status !== 'COMPLETED') errored++;
    traces += summary.trace_count;
    completions += summary.completion_count;
  }
  const ended = task.completed_sessions;
  const mean = (sum: number, count: number): number | null => (count === 0 ? null : sum / count);
  return {
    task_id: task.alias,
    status: shownState(task),
    harness: task.harness,
    model: requestOf(task).agent.model_name,
    num_samples: task.total_sessions,
    completed_sessions: ended,
    errored_sessions: errored,
    mean_reward: mean(task.reward_sum, task.reward_count),
    mean_traces: mean(traces, ended),
    mean_completions: mean(completions, ended),
    created_at: secondsOf(task.created_at),
    updated_at: updatedAt,
    source: 'live',
  };
}

/** Returns the sessions of a task, ordered by sample index. */
export async function polarSessions(
  context: RolloutContext,
  task: TaskRow,
  polarId: string,
): Promise<PolarSessionRow[]> {
  return context.store.read(async (tables) => {
    const shown: PolarSessionRow[] = [];
    for await (const row of sessionsOf(tables, task)) shown.push(sessionRow(row, polarId));
    return shown;
  });
}

function sessionRow(row: SessionRow, polarId: string): PolarSessionRow {
  const open = { session_id: row.session_id, task_id: polarId, status: polarState(row.status) };
  if (row.summary === null) return open;
  const summary = JSON.parse(row.summary) as SessionSummary;
  return {
    ...open,
    status: polarStatus(summary.status),
    node_id: summary.node_id,
    reward: summary.reward,
    timing: polarTiming(summary.timing),
    error: polarError(summary),
  };
}

async function* sessionsOf(tables: StoreTables, { task_id }: TaskRow): AsyncGenerator<SessionRow> {
  for (let after = -1; ; ) {
    const rows = await tables.sessions.ofTask(task_id, { after, limit: PAGE_SESSIONS });
    yield* rows;
    const last = rows.at(-1);
    if (last === undefined || rows.length < PAGE_SESSIONS) return;
    after = last.sample_index;
  }
}

/** Returns all nodes in Polar's form, ordered by id. */
export async function polarNodes(context: RolloutContext): Promise<PolarNode[]> {
  return (await listNodes(context)).map((node) => polarNode(context, node));
}

export function polarNode({ config }: RolloutContext, node: NodeInfo): PolarNode {
  const { processes, ...metrics } = node.metrics;
  const inStages = Object.values(metrics).reduce((sum, count) => sum + count, 0);
  return {
    node_id: node.node_id,
    gateway_url: node.gateway_url ?? '',
    max_init_workers: node.max_init_workers,
    max_run_workers: node.max_run_workers,
    max_postrun_workers: node.max_postrun_workers,
    metrics: { init_queue_depth: 0, ...metrics },
    dispatch_reservations: Math.max(0, node.leased_sessions - inStages),
    healthy: node.healthy,
    draining: node.draining,
    heartbeat_interval_seconds: Math.max(1, Math.round(config.node_timeout_seconds / STALE_FACTOR)),
    last_heartbeat: node.last_heartbeat,
  };
}

/** Returns the state of the service: Polar's `GET /rollout/status`. */
export async function polarServiceStatus(context: RolloutContext) {
  const tasks = await context.store.read((tables) => tables.aliases.list('polar', MAX_TASKS));
  const pending = tasks.reduce((sum, task) => sum + task.total_sessions - task.completed_sessions, 0);
  return {
    tasks: Object.fromEntries(tasks.map((task) => [task.alias, shownState(task)])),
    pipeline: { pending_sessions: pending },
    nodes: { nodes: await polarNodes(context) },
  };
}

function secondsOf(timestamp: string): number {
  return Date.parse(timestamp) / 1000;
}
