import { FloeError, settleAll } from '@floe-rl/core';
import type { BatchReply } from '@floe-rl/core/schema';
import type { ResultWithSummary } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { jsonListBytes, resultLines, resultListBytes } from '../sessions/result-json.ts';
import { computedRow, isEndless } from './computed-rows.ts';
import type { HandedBatch } from './hand-out.ts';
import { progressOf, readCounts, stalenessOf } from './views.ts';

type GroupHead = Omit<BatchReply['groups'][number], 'results'>;

/** What a reply says of a batch, without its results and records. */
export type BatchHead = Omit<BatchReply, 'groups' | 'records'> & { readonly groups: readonly GroupHead[] };

/** Number of groups whose results one statement reads, so that the summaries of a large batch are not all in memory at once. */
const GROUPS_PER_READ = 16;

/** Reads the rows and counts that belong to a batch. */
export async function batchHead(
  context: RolloutContext,
  { stream, request, batch, groups, isDone }: HandedBatch,
): Promise<BatchHead> {
  const { batch_id: batchId, policy_step: policyStep } = stream;
  const stored = isEndless(request.source) ? [] : groups.map((group) => group.task_id);
  const [counts, fields] = await context.store.read((tables) =>
    settleAll([
      readCounts(tables, batchId),
      stored.length === 0 ? Promise.resolve(null) : tables.batches.fieldsOfTasks(batchId, stored),
    ]),
  );
  const heads = groups.map((group) => ({
    group_id: group.task_id,
    row_index: group.row_index,
    epoch: group.epoch,
    policy_step: group.policy_step,
    staleness: stalenessOf(stream, group),
    usable: group.usable,
    mean_reward: group.mean_reward,
    row:
      computedRow(request.source, group.row_index) ??
      (JSON.parse(fields?.get(group.task_id) ?? '{}') as Record<string, unknown>),
  }));
  return { batch_id: batchId, batch, policy_step: policyStep, done: isDone, progress: progressOf(counts), groups: heads };
}

/** Yields the reply with the results of each group. */
export async function* batchWithResults(
  context: RolloutContext,
  { groups, ...head }: BatchHead,
): AsyncGenerator<Buffer> {
  let before = `${JSON.stringify(head).slice(0, -1)},"groups":[`;
  for await (const [group, results] of withResults(context, groups)) {
    const start = `${before}${JSON.stringify(group).slice(0, -1)},"results":`;
    yield* resultListBytes(start, results, '}', context.trajectories);
    before = ',';
  }
  yield Buffer.from(before === ',' ? ']}' : `${before}]}`);
}

/** Yields the reply with the records of a trainer's format, which `lines` holds as JSON lines. */
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
export async function resultTexts(
  context: RolloutContext,
  groups: readonly GroupHead[],
): Promise<Buffer[]> {
  const texts: Buffer[] = [];
  for await (const [{ group_id: taskId }, results] of withResults(context, groups)) {
    if (results.length === 0) {
      throw new FloeError('not_found', `the results of group ${taskId} were removed; request the next batch`, {
        task_id: taskId,
      });
    }
    let chunks: Buffer[] = [];
    for await (const chunk of resultLines(results, context.trajectories)) {
      if (chunk.length === 1 && chunk[0] === 0x0a) {
        texts.push(Buffer.concat(chunks));
        chunks = [];
      } else chunks.push(chunk);
    }
  }
  return texts;
}

/** Yields each group with its results, ordered by cursor. */
async function* withResults(
  context: RolloutContext,
  groups: readonly GroupHead[],
): AsyncGenerator<readonly [GroupHead, readonly ResultWithSummary[]]> {
  for (let from = 0; from < groups.length; from += GROUPS_PER_READ) {
    const part = groups.slice(from, from + GROUPS_PER_READ);
    const ids = part.map((group) => group.group_id);
    const results = await context.store.read((tables) => tables.results.ofTasks(ids));
    for (const group of part) yield [group, results.filter((result) => result.task_id === group.group_id)];
  }
}
