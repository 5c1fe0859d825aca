import { FloeError } from '@floe-rl/core';
import type { SessionSummary, SessionTiming, TaskRequest } from '@floe-rl/core/schema';
import type { ResultWithSummary, TaskRow } from '../../store/index.ts';
import type { CallbackBody } from '../callbacks/payload.ts';
import type { RolloutContext } from '../context.ts';
import { requestOf } from '../tasks/groups.ts';
import { seedBaseOf } from './request.ts';
import { type PolarStatus, type PolarTiming, polarTimingSchema } from './schema.ts';
import { polarTrajectory } from './trajectory.ts';

/** Maximum number of sessions that one query reads. */
const PAGE_SESSIONS = 100;

/** Returns the API path of a session's trajectory, which Polar's field `result_paths` lists. */
const pathOf = (row: ResultWithSummary): string => `/sessions/${row.session_id}/trajectory`;

/** Returns the state in which Polar shows an ended session. Polar has no cancelled sessions; they are errors. */
export function polarStatus(status: SessionSummary['status']): PolarStatus {
  return status === 'CANCELLED' ? 'ERROR' : status;
}

/** Returns a session's error as text; `null` for a session that completed. */
export function polarError({ status, error, outcome }: SessionSummary): string | null {
  if (status === 'COMPLETED') return null;
  return error?.message ?? (outcome === 'cancelled' ? 'session cancelled' : `the session ended as ${outcome}`);
}

/** Returns the durations of a session under Polar's names. A stage that the session did not reach took 0 ms. */
export function polarTiming(timing: SessionTiming): PolarTiming {
  const queued = timing.queued_ms ?? 0;
  return polarTimingSchema.parse({
    rollout_dispatch_ms: queued,
    rollout_result_wait_ms: timing.total_ms,
    rollout_pipeline_e2e_ms: queued + timing.total_ms,
    init_ms: timing.init_ms ?? 0,
    ready_queue_ms: timing.ready_ms ?? 0,
    run_ms: timing.running_ms ?? 0,
    postrun_queue_ms: timing.postrun_queue_ms ?? 0,
    postrun_ms: timing.postrun_ms ?? 0,
    agent_exec_ms: timing.running_ms ?? 0,
    build_ms: timing.build_ms ?? 0,
    eval_ms: timing.eval_ms ?? 0,
    e2e_ms: timing.total_ms,
  });
}

/** Yields the results of a task's ended sessions, ordered by sample index. */
async function* resultsBySample(context: RolloutContext, taskId: string): AsyncGenerator<ResultWithSummary> {
  for (let after = -1; ; ) {
    const { rows, last } = await context.store.read(async (tables) => {
      const sessions = await tables.sessions.ofTask(taskId, { after, limit: PAGE_SESSIONS });
      const ended = sessions.filter((session) => session.summary !== null);
      const found: ResultWithSummary[] = [];
      for (const { session_id } of ended) {
        const result = await tables.results.ofSession(session_id);
        if (result !== undefined) found.push(result);
      }
      return { rows: found, last: sessions.length < PAGE_SESSIONS ? undefined : sessions.at(-1) };
    });
    yield* rows;
    if (last === undefined) return;
    after = last.sample_index;
  }
}

/**
 * Yields the JSON of a Polar `TaskStatus` or `TaskResult`: the fields of `head`, then `results` and `result_paths`. One trajectory at a time is in
 * memory.
 */
export async function* taskBytes(
  context: RolloutContext,
  task: TaskRow,
  polarId: string,
  head: Readonly<Record<string, unknown>>,
): AsyncGenerator<Buffer> {
  const paths: string[] = [];
  let separator = `${JSON.stringify({ task_id: polarId, ...head }).slice(0, -1)},"results":[`;
  for await (const row of resultsBySample(context, task.task_id)) {
    yield Buffer.from(separator);
    yield* sessionBytes(context, task, polarId, row);
    separator = ',';
    paths.push(pathOf(row));
  }
  const end = `],"result_paths":${JSON.stringify(paths)}}`;
  yield Buffer.from(separator === ',' ? end : separator + end);
}

/**
 * Creates the body of an ended task's callback: Polar's `TaskResult`. The body is made twice: the first time only to count its
 * bytes. Their number cannot be computed from the sizes of the stored trajectories, because each trajectory is converted to Polar's format.
 */
export async function polarCallbackBody(
  context: RolloutContext,
  task: TaskRow,
  polarId: string,
): Promise<CallbackBody> {
  const bytes = (): AsyncGenerator<Buffer> => taskBytes(context, task, polarId, { status: task.status });
  let length = 0;
  for await (const part of bytes()) length += part.length;
  return { length, bytes };
}

/** Yields the JSON of a Polar `SessionResult`. */
async function* sessionBytes(
  context: RolloutContext,
  row: TaskRow,
  polarId: string,
  result: ResultWithSummary,
): AsyncGenerator<Buffer> {
  const task = requestOf(row);
  const summary = JSON.parse(result.summary) as SessionSummary;
  const stored = await context.trajectories.read(result);
  const isUnreadable = stored instanceof FloeError;
  const status = isUnreadable ? 'ERROR' : polarStatus(summary.status);
  const error = isUnreadable ? stored.message : polarError(summary);
  const cancellation = row.early_stopped === 1 && summary.status === 'CANCELLED' ? earlyStop(row, task, summary) : {};
  const head = { session_id: summary.session_id, task_id: polarId, status };
  const tail = {
    timing: polarTiming(summary.timing),
    node_id: summary.node_id,
    error,
    metadata: { ...sampleMetadata(task, summary.sample_index), ...cancellation },
  };
  yield Buffer.from(`${JSON.stringify(head).slice(0, -1)},"trajectory":`);
  yield polarTrajectory(isUnreadable ? null : stored, { summary, task, status, error, metadata: cancellation });
  yield Buffer.from(`,${JSON.stringify(tail).slice(1)}`);
}

/** Returns the task's metadata, with the seed of this sample when the task seeds its samples. */
function sampleMetadata({ metadata }: TaskRequest, sampleIndex: number): Record<string, unknown> {
  const seed = seedBaseOf(metadata);
  return seed === null ? metadata : { ...metadata, eval_sampling_seed: seed + sampleIndex };
}

/** Returns the metadata that Polar gives to a session which was cancelled because the task had enough usable samples. */
function earlyStop(row: TaskRow, task: TaskRequest, { timing }: SessionSummary): Record<string, unknown> {
  return {
    early_stop_cancelled: true,
    fully_masked: true,
    early_stop_reason: 'minimum_usable_sessions_reached',
    early_stop_min_usable_sessions: task.early_stop_min_usable_sessions,
    early_stop_usable_sessions: row.usable_sessions,
    early_stop_elapsed_ms: (timing.queued_ms ?? 0) + timing.total_ms,
  };
}
