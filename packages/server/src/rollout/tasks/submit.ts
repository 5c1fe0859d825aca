import { createHash } from 'node:crypto';
import { canonicalJson, FloeError, isoNow } from '@floe-rl/core';
import { sessionMemoryMb } from '@floe-rl/core/protocol';
import type { SubmitReply, TaskRequest } from '@floe-rl/core/schema';
import type { StoreTables, TaskRow } from '../../store/index.ts';
import { checkOutboundUrl } from '../callbacks/address.ts';
import type { RolloutContext } from '../context.ts';
import { bodyError } from '../field-errors.ts';
import { expectedMs } from '../sessions/durations.ts';
import { runTransaction, type Transaction } from '../transaction.ts';
import { requestOf } from './groups.ts';
import { shownState, unknownTask } from './views.ts';

/**
 * Stores a task and queues its sessions. A repeat of the same request, with the same `task_id` or `idempotency_key`, gets the reply of the
 * first submit; a different request with the same `task_id` or `idempotency_key` throws `conflict`.
 */
export async function submitTask(context: RolloutContext, request: TaskRequest): Promise<SubmitReply> {
  await checkRequest(context, request);
  const digest = digestOf(request);
  return runTransaction(context, async (transaction) => {
    const { tables } = transaction;
    await tables.tasks.reserve(request.task_id ?? null, request.idempotency_key ?? null);
    const known = await findTask(tables, request);
    if (known !== undefined) return repeatedReply(tables, known, digest);
    const taskId = request.task_id ?? context.newId('task');
    await refuseCancelled(transaction, taskId, taskId);
    const sessionIds = await insertTask(transaction, taskId, request, digest);
    return { task_id: taskId, status: 'running' as const, session_ids: sessionIds, duplicate: false };
  });
}

/**
 * Submits a task once more as a new task, with a new id and without the callback, because the callback's receiver expects only the first task.
 * Throws `not_found` for an unknown task, and as {@link submitTask} does.
 */
export async function repeatTask(
  context: RolloutContext,
  taskId: string,
  traceparent: string | null,
): Promise<SubmitReply> {
  const task = await context.store.read(({ tasks }) => tasks.get(taskId));
  if (task === undefined) throw unknownTask(taskId);
  const { task_id: _, idempotency_key: __, ...request } = requestOf(task);
  return submitTask(context, { ...request, callback_url: null, traceparent });
}

/** Throws when the task cannot be accepted, because of its fields or because of a plug-in that it names. */
export async function checkRequest(context: RolloutContext, request: TaskRequest): Promise<void> {
  checkEarlyStop(request);
  if (request.callback_url !== null) checkOutboundUrl(context.config, request.callback_url, 'callback_url');
  await context.validateTask(request);
}

/** Throws `conflict` when a task was cancelled before it was submitted. `name` is the id under which the cancellation was stored. */
export async function refuseCancelled({ context, tables }: Transaction, name: string, shownId: string): Promise<void> {
  if (!(await tables.tombstones.has(name, context.time.nowMs()))) return;
  throw new FloeError('conflict', `task ${shownId} was cancelled before it was submitted`, { task_id: shownId });
}

/** Returns a digest that is equal for equal requests. */
export function digestOf(request: TaskRequest): string {
  // The trace context is left out of the digest, because a repeat may be part of another trace and is still the same request.
  const { traceparent: _, ...untraced } = request;
  return createHash('sha256').update(canonicalJson(untraced)).digest('hex');
}

/**
 * Adds a task and queues its sessions. Resolves with the ids of the sessions, ordered by sample index. Throws `unsupported` when no node has
 * enough memory for a session of the task. The memory is checked only here, so that a repeated submission gets the reply of the first one
 * although the nodes have changed since.
 */
export async function insertTask(
  transaction: Transaction,
  taskId: string,
  request: TaskRequest,
  digest: string,
): Promise<string[]> {
  const { context, tables } = transaction;
  const { runtime, evaluator } = request;
  const memoryMb = sessionMemoryMb(runtime, evaluator !== null && context.usesFreshRuntime(evaluator));
  await context.nodeSizes.refuseOversized(tables, request.runtime, memoryMb);
  const nowMs = context.time.nowMs();
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
      memory_mb: memoryMb,
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
  return sessions.map((session) => session.session_id);
}

function checkEarlyStop({ early_stop_min_usable_sessions: least, num_samples: samples }: TaskRequest): void {
  if (least === null || least <= samples) return;
  const path = 'early_stop_min_usable_sessions';
  const message = `is ${least}, but num_samples is only ${samples}`;
  throw bodyError(path, message);
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
  // The reply to a repeated submission equals the reply to the first one, so it leaves out the samples that `refill` has added since. These
  // have the highest sample indexes.
  const submitted = known.total_sessions - known.refilled;
  const sessionIds = (await tables.sessions.idsOfTask(known.task_id)).slice(0, submitted);
  return { task_id: known.task_id, status: shownState(known), session_ids: sessionIds, duplicate: true };
}
