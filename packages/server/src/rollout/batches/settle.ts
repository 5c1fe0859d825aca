import { FloeError } from '@floe-rl/core';
import type { FilteredGroup } from '@floe-rl/core/protocol';
import type { SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import type { BatchGroupRow, TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import type { Transaction } from '../transaction.ts';
import { type GroupVerdict, judgeGroup, type Rejection } from './acceptance.ts';
import { streamRequest } from './stream-request.ts';

/** Number of groups of one visit of a row that may fail because of the infrastructure before the row is given up. */
const MAX_TRIES = 3;

/**
 * Records the end of a task in the stream that it belongs to: whether its group is effective, and the result for its row. Does nothing for a
 * task that belongs to no stream. `isCancelled` means that the task was cancelled, or exceeded its deadline, before it had enough samples. The
 * caller must hold the task's lock.
 */
export async function settleGroup(transaction: Transaction, task: TaskRow, isCancelled: boolean): Promise<void> {
  const { batches, sessions, results } = transaction.tables;
  const group = await batches.groupOfTask(task.task_id);
  if (group === undefined) return;
  const { batch_id: batchId, group_no: groupNo } = group;
  const rows = await sessions.ofTask(task.task_id);
  const totals = { sessions: rows.length, sampled_tokens: rows.reduce((sum, row) => sum + row.sampled_tokens, 0) };
  transaction.wake(`batch:${batchId}`);
  transaction.wake('batches');
  if (group.state !== 'running' || isCancelled) {
    const state = group.state === 'running' ? { state: 'cancelled' as const } : {};
    await batches.updateGroup(batchId, groupNo, { ...totals, ...state });
    return results.collectTasks([task.task_id]);
  }
  const samples = rows.flatMap(({ summary }) => (summary === null ? [] : [JSON.parse(summary) as SessionSummary]));
  const { verdict, retireAfter } = await judge(transaction, group, task, samples);
  const { rejection, usable, resolved, meanReward } = verdict;
  const lacksSamples = rejection === 'few_usable' && samples.some(({ outcome }) => isFailure(outcome));
  const repeat = lacksSamples && group.tries + 1 < MAX_TRIES ? 1 : 0;
  await batches.updateGroup(batchId, groupNo, {
    ...totals,
    state: rejection === null ? 'ready' : 'rejected',
    reason: rejection,
    repeat,
    usable,
    resolved,
    mean_reward: meanReward,
  });
  if (repeat === 0) await recordRow(transaction, group, verdict, retireAfter);
  if (rejection !== null) await results.collectTasks([task.task_id]);
}

function isFailure(outcome: SessionSummary['outcome']): boolean {
  return outcome === 'infra_error' || outcome === 'engine_error';
}

type Judgement = { readonly verdict: GroupVerdict; readonly retireAfter: number | null };

async function judge(
  transaction: Transaction,
  group: BatchGroupRow,
  task: TaskRow,
  samples: readonly SessionSummary[],
): Promise<Judgement> {
  const stream = await transaction.tables.batches.stream(group.batch_id);
  if (stream === undefined) throw new FloeError('internal', `the batch stream ${group.batch_id} of a group is missing`);
  const { accept, purpose, retire_after: retireAfter } = streamRequest(stream);
  const { evaluator, num_samples: numSamples } = JSON.parse(task.request) as TaskRequest;
  const verdict = judgeGroup(samples, accept, { hasEvaluator: evaluator !== null, numSamples });
  if (purpose === 'evaluate') return { verdict: { ...verdict, rejection: null }, retireAfter: null };
  if (verdict.rejection !== null || accept.filter === null) return { verdict, retireAfter };
  const rejection = filterGroup(transaction.context, accept.filter, {
    row_index: group.row_index,
    epoch: group.epoch,
    policy_step: group.policy_step,
    mean_reward: verdict.meanReward,
    samples,
  });
  return { verdict: { ...verdict, rejection }, retireAfter };
}

/** Calls a filter of the operator. If the filter throws or this server does not have it, the group is rejected and a message is logged. */
function filterGroup({ batchFilters, log }: RolloutContext, name: string, group: FilteredGroup): Rejection | null {
  try {
    const filter = batchFilters.get(name);
    if (filter === undefined) throw new Error(`this server has no batch filter ${name}`);
    return filter(group) === true ? null : 'filter';
  } catch (thrown) {
    log.error(
      { filter: name, row_index: group.row_index, err: thrown },
      'a batch filter failed; its group is rejected',
    );
    return 'filter_failed';
  }
}

async function recordRow(
  { tables }: Transaction,
  { batch_id: batchId, row_index: rowIndex, epoch }: BatchGroupRow,
  { rejection, meanReward, pattern }: GroupVerdict,
  retireAfter: number | null,
): Promise<void> {
  const row = await tables.batches.row(batchId, rowIndex);
  if (row === undefined) return;
  const rejections = rejection === null ? 0 : row.rejections + 1;
  await tables.batches.updateRow(batchId, rowIndex, {
    last_epoch: epoch,
    mean_reward: meanReward,
    last_result: pattern === 'all_wrong' || pattern === 'all_right' ? pattern : 'other',
    rejections,
    retired: retireAfter !== null && rejections >= retireAfter ? 1 : row.retired,
  });
}
