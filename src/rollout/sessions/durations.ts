import { createHash } from 'node:crypto';
import type { SessionSummary, TaskRequest } from '../../schema/index.ts';
import type { StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';

/** Sessions of one key are expected to take equally long: the trainer's own, else one of instruction and harness. */
export function durationKeyOf(task: Pick<TaskRequest, 'duration_key' | 'instruction' | 'agent'>): string {
  if (task.duration_key !== null) return `given:${task.duration_key}`;
  const made = JSON.stringify([task.agent.harness, task.instruction]);
  return `made:${createHash('sha256').update(made).digest('hex')}`;
}

/**
 * How long a session of the task is expected to be in INIT, RUNNING and evaluation, ms. One whose key is not known is taken for an
 * average one: it is neither put last nor tried first. 0 where nothing is known, and where the order does not depend on it.
 */
export async function expectedMs(context: RolloutContext, tables: StoreTables, task: TaskRequest): Promise<number> {
  if (context.config.queue_order === 'fifo') return 0;
  const key = durationKeyOf(task);
  return (await tables.durations.means([key])).get(key) ?? (await context.scheduling.overallMeanMs(tables)) ?? 0;
}

/** Learns from a session that ended with an outcome of its own; one that was cut short says nothing of how long they take. */
export async function observeDuration(
  context: RolloutContext,
  tables: StoreTables,
  task: TaskRequest,
  { status, timing }: Pick<SessionSummary, 'status' | 'timing'>,
): Promise<void> {
  if (status !== 'COMPLETED') return;
  context.scheduling.stages.observe(timing);
  if (context.config.queue_order === 'fifo') return;
  const ms = (timing.init_ms ?? 0) + (timing.running_ms ?? 0) + (timing.eval_ms ?? 0);
  await tables.durations.observe(durationKeyOf(task), ms);
}
