import { createHash } from 'node:crypto';
import type { SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import type { Transaction } from '../transaction.ts';

/**
 * Returns the key under which session durations are averaged; sessions with the same key are expected to take equally long. The key is the
 * task's `duration_key`, or else a hash of harness and instruction.
 */
export function durationKeyOf(task: Pick<TaskRequest, 'duration_key' | 'instruction' | 'agent'>): string {
  if (task.duration_key !== null) return `given:${task.duration_key}`;
  const made = JSON.stringify([task.agent.harness, task.instruction]);
  return `made:${createHash('sha256').update(made).digest('hex')}`;
}

/**
 * Returns how long a session of the task is expected to spend in INIT, RUNNING and evaluation together, in milliseconds. When no duration
 * is known for the task's key, returns the overall mean, so that the task is scheduled neither first nor last. Returns 0 when no duration
 * is known at all, or when the queue is first in, first out and needs no durations.
 */
export async function expectedMs({ context, tables }: Transaction, task: TaskRequest): Promise<number> {
  if (context.config.queue_order === 'fifo') return 0;
  const key = durationKeyOf(task);
  return (await tables.durations.means([key])).get(key) ?? (await context.scheduling.overallMeanMs(tables)) ?? 0;
}

/**
 * Adds a session's duration to the mean of its key. Only completed sessions count, because sessions that were cut short would make the mean
 * too small.
 */
export async function observeDuration(
  { context, tables }: Transaction,
  task: TaskRequest,
  { status, timing }: Pick<SessionSummary, 'status' | 'timing'>,
): Promise<void> {
  if (status !== 'COMPLETED') return;
  context.scheduling.stages.observe(timing);
  if (context.config.queue_order === 'fifo') return;
  const ms = (timing.init_ms ?? 0) + (timing.running_ms ?? 0) + (timing.eval_ms ?? 0);
  await tables.durations.observe(durationKeyOf(task), ms);
}
