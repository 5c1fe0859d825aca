import { createHash } from 'node:crypto';
import { isoNow } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { isTerminal } from '../core/session-state.ts';
import type { SubmitReply, TaskRequest } from '../schema/index.ts';
import type { StoreTables, TaskRow } from '../store/index.ts';
import { checkCallbackUrl } from './callback-address.ts';
import { change, type RolloutContext } from './context.ts';
import { cancelSessions } from './endings.ts';

/**
 * Stores a task and queues its sessions. The same request again, by `task_id` or `idempotency_key`, is answered with the
 * first reply; a different one under either throws `conflict`.
 */
export async function submitTask(context: RolloutContext, request: TaskRequest): Promise<SubmitReply> {
  if (request.callback_url !== null) checkCallbackUrl(context.config, request.callback_url);
  await context.validateTask(request);
  const digest = createHash('sha256').update(canonicalJson(request)).digest('hex');
  return change(context, async (tables, effects) => {
    const known = await findTask(tables, request);
    if (known !== undefined) return repeatedSubmit(tables, known, digest);
    const nowMs = context.time.nowMs();
    const taskId = request.task_id ?? context.newId('task');
    if (await tables.tombstones.has(taskId, nowMs)) {
      throw new FloeError('conflict', `task ${taskId} was cancelled before it was submitted`, { task_id: taskId });
    }
    const createdAt = isoNow(context.clock);
    await tables.tasks.insert({
      task_id: taskId,
      idempotency_key: request.idempotency_key ?? null,
      digest,
      request: JSON.stringify({ ...request, task_id: taskId }),
      status: 'running',
      harness: request.agent.harness,
      trainer: request.trainer,
      total_sessions: request.num_samples,
      completed_sessions: 0,
      usable_sessions: 0,
      baseline_sessions: 0,
      refilled: 0,
      refills_left: request.refill,
      early_stopped: 0,
      reward_sum: 0,
      reward_count: 0,
      callback_url: request.callback_url,
      deadline_ms: request.deadline_seconds === null ? null : nowMs + request.deadline_seconds * 1000,
      ended_ms: null,
      created_at: createdAt,
    });
    const sessions = Array.from({ length: request.num_samples }, (_, index) => ({
      session_id: context.newId('ses'),
      sample_index: index,
    }));
    await tables.sessions.insert(
      {
        task_id: taskId,
        trainer: request.trainer,
        expected_ms: 0,
        priority: request.dispatch_priority,
        max_attempts: request.max_attempts,
        not_before_ms: nowMs,
        queued_since_ms: nowMs,
        created_at: createdAt,
      },
      sessions,
    );
    effects.events.push({ type: 'task.created', task_id: taskId, total_sessions: request.num_samples });
    effects.topics.add('queue');
    return {
      task_id: taskId,
      status: 'running' as const,
      session_ids: sessions.map((session) => session.session_id),
      duplicate: false,
    };
  });
}

async function findTask(tables: StoreTables, request: TaskRequest): Promise<TaskRow | undefined> {
  const byId = request.task_id === undefined ? undefined : await tables.tasks.get(request.task_id);
  if (byId !== undefined || request.idempotency_key === undefined) return byId;
  return tables.tasks.findByKey(request.idempotency_key);
}

async function repeatedSubmit(tables: StoreTables, known: TaskRow, digest: string): Promise<SubmitReply> {
  if (known.digest !== digest) {
    throw new FloeError('conflict', `task ${known.task_id} was submitted with a different body`, {
      task_id: known.task_id,
    });
  }
  const sessionIds = await tables.sessions.idsOfTask(known.task_id);
  return { task_id: known.task_id, status: known.status, session_ids: sessionIds, duplicate: true };
}

/**
 * Cancels every session of a task that has not ended. A task that is already done stays as it is. An unknown id throws
 * `not_found`, unless `registerIfMissing`: then a later submit of that id is refused for a while, and the reply is null.
 */
export async function cancelTask(
  context: RolloutContext,
  taskId: string,
  registerIfMissing: boolean,
): Promise<TaskRow | null> {
  return change(context, async (tables, effects) => {
    const task = await tables.tasks.get(taskId);
    if (task === undefined) {
      if (!registerIfMissing) throw unknownTask(taskId);
      await tables.tombstones.put(taskId, context.time.nowMs() + context.config.tombstone_seconds * 1000);
      return null;
    }
    if (task.status !== 'running') return task;
    await tables.tasks.update(taskId, { status: 'cancelled' });
    const request = JSON.parse(task.request) as TaskRequest;
    const open = (await tables.sessions.ofTask(taskId)).filter((row) => !isTerminal(row.status));
    await cancelSessions(context, tables, effects, open, request);
    return (await tables.tasks.get(taskId)) ?? task;
  });
}

export function unknownTask(taskId: string): FloeError {
  return new FloeError('not_found', `task ${taskId} is not known`, { task_id: taskId });
}

/** JSON with sorted keys, so that the order in which a client writes fields does not matter. */
function canonicalJson(value: unknown): string {
  return JSON.stringify(value, (_, inner: unknown) => {
    if (typeof inner !== 'object' || inner === null || Array.isArray(inner)) return inner;
    return Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)));
  });
}
