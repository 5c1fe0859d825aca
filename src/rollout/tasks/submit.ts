import { createHash } from 'node:crypto';
import { canonicalJson } from '../../core/canonical-json.ts';
import { isoNow } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { SubmitReply, TaskRequest } from '../../schema/index.ts';
import type { StoreTables, TaskRow } from '../../store/index.ts';
import { checkCallbackUrl } from '../callbacks/address.ts';
import type { RolloutContext } from '../context.ts';
import { expectedMs } from '../sessions/durations.ts';
import { runTransaction } from '../transaction.ts';
import { shownState } from './views.ts';

/**
 * Stores a task and queues its sessions. A repeat of the same request, with the same `task_id` or `idempotency_key`, gets the reply of the
 * first submit; a different request with the same `task_id` or `idempotency_key` throws `conflict`.
 */
export async function submitTask(context: RolloutContext, request: TaskRequest): Promise<SubmitReply> {
  checkEarlyStop(request);
  if (request.callback_url !== null) checkCallbackUrl(context.config, request.callback_url);
  await context.validateTask(request);
  // The trace context is left out of the digest, because a repeat may be part of another trace and is still the same request.
  const { traceparent: _, ...untraced } = request;
  const digest = createHash('sha256').update(canonicalJson(untraced)).digest('hex');
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    await tables.tasks.reserve(request.task_id ?? null, request.idempotency_key ?? null);
    const known = await findTask(tables, request);
    if (known !== undefined) return repeatedReply(tables, known, digest);
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
        expected_ms: await expectedMs(transaction, request),
        priority: request.dispatch_priority,
        max_attempts: request.max_attempts,
        not_before_ms: nowMs,
        queued_since_ms: nowMs,
        created_at: createdAt,
      },
      sessions,
    );
    transaction.publish({ type: 'task.created', task_id: taskId, total_sessions: request.num_samples });
    transaction.wake('queue');
    return {
      task_id: taskId,
      status: 'running' as const,
      session_ids: sessions.map((session) => session.session_id),
      duplicate: false,
    };
  });
}

function checkEarlyStop({ early_stop_min_usable_sessions: least, num_samples: samples }: TaskRequest): void {
  if (least === null || least <= samples) return;
  const path = 'early_stop_min_usable_sessions';
  const message = `is ${least}, but num_samples is only ${samples}`;
  throw new FloeError('schema_violation', `body: ${path}: ${message}`, { issues: [{ path, message }] });
}

async function findTask(tables: StoreTables, request: TaskRequest): Promise<TaskRow | undefined> {
  const byId = request.task_id === undefined ? undefined : await tables.tasks.get(request.task_id);
  if (byId !== undefined || request.idempotency_key === undefined) return byId;
  return tables.tasks.findByKey(request.idempotency_key);
}

async function repeatedReply(tables: StoreTables, known: TaskRow, digest: string): Promise<SubmitReply> {
  if (known.digest !== digest) {
    throw new FloeError('conflict', `task ${known.task_id} was submitted with a different body`, {
      task_id: known.task_id,
    });
  }
  // Refills have the highest sample indexes and were not part of the first reply, so they are left out.
  const submitted = known.total_sessions - known.refilled;
  const sessionIds = (await tables.sessions.idsOfTask(known.task_id)).slice(0, submitted);
  return { task_id: known.task_id, status: shownState(known), session_ids: sessionIds, duplicate: true };
}
