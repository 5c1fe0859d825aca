import { FloeError } from '@floe-rl/core';
import type { BatchReply } from '@floe-rl/core/schema';
import type { ResultWithSummary } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { withTrajectories } from '../sessions/read-ahead.ts';
import { jsonListBytes, sessionResultBytes } from '../sessions/result-json.ts';
import { stalenessOf } from './batch-decision.ts';
import { computedRow } from './computed-rows.ts';
import type { HandedBatch } from './hand-out.ts';
import { progressOf, WARNED_REJECTIONS } from './views.ts';

type GroupHead = Omit<BatchReply['groups'][number], 'results'>;

/** The fields of the reply about a batch, without its results and records. */
export type BatchHead = Omit<BatchReply, 'groups' | 'records'> & { readonly groups: readonly GroupHead[] };

/** Number of groups whose results one statement reads, so that the summaries of a large batch are not all in memory at once. */
const GROUPS_PER_READ = 16;

/** Reads the counts for the reply about a batch, and returns the reply without results and records. */
export async function batchHead(
  context: RolloutContext,
  { stream, request, batch, groups, isDone }: HandedBatch,
): Promise<BatchHead> {
  const { batch_id: batchId, policy_step: policyStep } = stream;
  const counts = await context.store.read((tables) => tables.batches.counts(batchId, WARNED_REJECTIONS));
  const heads = groups.map((group) => ({
    group_id: group.task_id,
    row_index: group.row_index,
    epoch: group.epoch,
    policy_step: group.policy_step,
    staleness: stalenessOf(stream, group),
    usable: group.usable,
    mean_reward: group.mean_reward,
    row: computedRow(request.source, group.row_index) ?? (JSON.parse(group.fields ?? '{}') as Record<string, unknown>),
  }));
  return {
    batch_id: batchId,
    batch,
    policy_step: policyStep,
    done: isDone,
    progress: progressOf(counts),
    groups: heads,
  };
}

/**
 * Yields the reply with the results of each group. The first trajectory is read before the first bytes are yielded, so that a store that fails
 * makes the request fail instead of truncating the reply.
 */
export async function* batchWithResults(
  context: RolloutContext,
  { groups, ...head }: BatchHead,
): AsyncGenerator<Buffer> {
  let text = `${JSON.stringify(head).slice(0, -1)},"groups":[`;
  let started = 0;
  const startNext = (): void => {
    const group = JSON.stringify(groups[started]).slice(0, -1);
    text += `${started === 0 ? '' : ']},'}${group},"results":[`;
    started++;
  };
  let hasResults = false;
  for await (const [row, trajectory] of withTrajectories(resultRows(context, groups), context.trajectories)) {
    while (groups[started - 1]?.group_id !== row.task_id) {
      startNext();
      hasResults = false;
    }
    yield Buffer.from(hasResults ? ',' : text);
    text = '';
    hasResults = true;
    yield* sessionResultBytes(row, trajectory);
  }
  while (started < groups.length) startNext();
  yield Buffer.from(`${text}${started === 0 ? '' : ']}'}]}`);
}

/** Yields the reply with the records of a trainer's format. `lines` are the records as JSON lines. */
export async function* batchWithRecords(head: BatchHead, lines: Buffer): AsyncGenerator<Buffer> {
  const before = `${JSON.stringify(head).slice(0, -1)},"records":`;
  yield* jsonListBytes(before, linesOf(lines), '}');
}

async function* linesOf(lines: Buffer): AsyncGenerator<string> {
  for (let start = 0; start < lines.length; ) {
    const end = lines.indexOf(0x0a, start);
    const stop = end === -1 ? lines.length : end;
    if (stop > start) yield lines.toString('utf8', start, stop);
    start = stop + 1;
  }
}

/** Returns the results of a batch as JSON texts, in the order of its groups. Throws `not_found` when a group's results were removed. */
export async function resultTexts(context: RolloutContext, groups: readonly GroupHead[]): Promise<Buffer[]> {
  const texts: Buffer[] = [];
  const missing = new Set(groups.map((group) => group.group_id));
  for await (const [row, trajectory] of withTrajectories(resultRows(context, groups), context.trajectories)) {
    missing.delete(row.task_id);
    texts.push(Buffer.concat([...sessionResultBytes(row, trajectory)]));
  }
  const [taskId] = missing;
  if (taskId === undefined) return texts;
  throw new FloeError('not_found', `the results of group ${taskId} were removed; request the next batch`, {
    task_id: taskId,
  });
}

/** Yields the results of each group, ordered by cursor. */
async function* resultRows(context: RolloutContext, groups: readonly GroupHead[]): AsyncGenerator<ResultWithSummary> {
  for (let from = 0; from < groups.length; from += GROUPS_PER_READ) {
    const ids = groups.slice(from, from + GROUPS_PER_READ).map((group) => group.group_id);
    const results = await context.store.read((tables) => tables.results.ofTasks(ids));
    for (const id of ids) yield* results.filter((result) => result.task_id === id);
  }
}
