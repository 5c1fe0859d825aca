import { isoNow } from '@floe-rl/core';
import type { TaskRequest } from '@floe-rl/core/schema';
import type { AliasRow, StoreTables, TaskRow } from '../../store/index.ts';
import type { Transaction } from '../transaction.ts';
import { digestOf, insertTask } from './submit.ts';

/**
 * An id that a client of another system's API has chosen for a task. It may contain characters that are not allowed in the ids of floe's own
 * tasks.
 */
export type Alias = Pick<AliasRow, 'api' | 'alias'>;

/**
 * Returns the name of an alias in the tables of locks and of early cancellations, which also contain ids of floe's own tasks. Such an id has
 * no colon, so it never equals this name.
 */
export function nameOf({ api, alias }: Alias): string {
  return `${api}:${alias}`;
}

/** Prevents other transactions from using an alias until this transaction ends. */
export function reserveAlias(tables: StoreTables, alias: Alias): Promise<void> {
  return tables.tasks.reserve(nameOf(alias), null);
}

/** Returns the task that an alias names; with `lock`, its row is locked until the transaction ends. */
export async function aliasedTask(
  tables: StoreTables,
  { api, alias }: Alias,
  read: 'get' | 'lock',
): Promise<TaskRow | undefined> {
  const row = await tables.aliases.get(api, alias);
  return row === undefined ? undefined : tables.tasks[read](row.task_id);
}

/**
 * Adds a task with an alias, which the caller has reserved. Resolves with the id of the task. `earlier` is an ended task that had the alias
 * before. If the callback of `earlier` has not been delivered yet, it is no longer delivered. The callbacks of both tasks have the alias as
 * their id, so the trainer could not distinguish them.
 */
export async function insertAliased(
  transaction: Transaction,
  alias: Alias,
  earlier: TaskRow | undefined,
  request: TaskRequest,
): Promise<string> {
  const { context, tables } = transaction;
  if (earlier !== undefined) await retire(transaction, earlier.task_id);
  const taskId = context.newId('task');
  await insertTask(transaction, taskId, request, digestOf(request));
  await tables.aliases.put({ ...alias, task_id: taskId });
  return taskId;
}

async function retire({ context, tables }: Transaction, taskId: string): Promise<void> {
  const callback = await tables.callbacks.get(taskId);
  if (callback?.delivered_at !== null) return;
  const last_error = 'the task id was used again before this callback was acknowledged';
  await tables.callbacks.update(taskId, { delivered_at: isoNow(context.clock), last_error });
  await tables.results.collectTasks([taskId]);
}
