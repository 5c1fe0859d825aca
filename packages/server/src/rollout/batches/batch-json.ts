import { FloeError } from '@floe-rl/core';
import type { BatchReply } from '@floe-rl/core/schema';
import type { BatchGroupRow, ResultWithSummary } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { jsonListBytes, resultLines, resultListBytes } from '../sessions/result-json.ts';
import { computedRow } from './computed-rows.ts';
import type { HandedBatch } from './hand-out.ts';
import { streamRequest } from './stream-request.ts';
import { progressOf, stalenessOf } from './views.ts';

type GroupHead = Omit<BatchReply['groups'][number], 'results'>;

/** What a reply says of a batch, without its results and records. */
export type BatchHead = Omit<BatchReply, 'groups' | 'records'> & { readonly groups: readonly GroupHead[] };

/** Reads the rows and counts that belong to a batch. */
export async function batchHead(
  context: RolloutContext,
  { stream, batch, groups, isDone }: HandedBatch,
): Promise<BatchHead> {
  const { source } = streamRequest(stream);
  return context.store.read(async (tables) => {
    const totals = await tables.batches.countGroups(stream.batch_id);
    const heads: GroupHead[] = [];
    for (const group of groups) {
      const computed = computedRow(source, group.row_index);
      const stored = computed === null ? await tables.batches.row(stream.batch_id, group.row_index) : undefined;
      heads.push({
        group_id: group.task_id,
        row_index: group.row_index,
        epoch: group.epoch,
        policy_step: group.policy_step,
        staleness: stalenessOf(stream, group),
        usable: group.usable,
        mean_reward: group.mean_reward,
        row: computed ?? (JSON.parse(stored?.fields ?? '{}') as Record<string, unknown>),
      });
    }
    return {
      batch_id: stream.batch_id,
      batch,
      policy_step: stream.policy_step,
      done: isDone,
      progress: await progressOf(tables, stream.batch_id, totals),
      groups: heads,
    };
  });
}

/** Yields the reply with the results of each group. */
export async function* batchWithResults(
  context: RolloutContext,
  { groups, ...head }: BatchHead,
): AsyncGenerator<Buffer> {
  let before = `${JSON.stringify(head).slice(0, -1)},"groups":[`;
  for (const group of groups) {
    const results = await resultsOf(context, group.group_id);
    yield* resultListBytes(
      `${before}${JSON.stringify(group).slice(0, -1)},"results":`,
      results,
      '}',
      context.trajectories,
    );
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
  groups: readonly Pick<BatchGroupRow, 'task_id'>[],
): Promise<Buffer[]> {
  const texts: Buffer[] = [];
  for (const { task_id: taskId } of groups) {
    const results = await resultsOf(context, taskId);
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

function resultsOf(context: RolloutContext, taskId: string): Promise<ResultWithSummary[]> {
  return context.store.read((tables) => tables.results.ofTask(taskId));
}
