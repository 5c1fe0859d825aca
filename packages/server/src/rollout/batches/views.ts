import type { BatchProgress, BatchStreamLoad, BatchStreamView } from '@floe-rl/core/schema';
import type { BatchCounts, BatchGroupTotals, BatchStreamRow, StoreTables } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { stalenessOf } from './batch-decision.ts';
import { isEndless } from './computed-rows.ts';
import { isSampled } from './next-row.ts';
import { streamRequest } from './stream-request.ts';

/** Maximum number of rows without a fitting template that a reply lists. */
export const MAX_LISTED_PROBLEMS = 100;

/** Number of successive rejected groups after which a stream has a warning. */
export const WARNED_REJECTIONS = 64;

/** Returns the reply of `GET /rollout/batches/{id}` for a stream. */
export async function streamView(context: RolloutContext, stream: BatchStreamRow): Promise<BatchStreamView> {
  return context.store.read(async (tables) => {
    const counts = await tables.batches.counts(stream.batch_id, WARNED_REJECTIONS);
    const { groups: totals, unsampledRows } = counts;
    const invalid = await tables.batches.invalidRows(stream.batch_id, MAX_LISTED_PROBLEMS);
    const hasRepeats = (await tables.batches.groupToRepeat(stream.batch_id)) !== undefined;
    const request = streamRequest(stream);
    const isEnd = isSampled(stream, request, { running: groupsIn(totals, 'running'), hasRepeats, unsampledRows });
    return {
      batch_id: stream.batch_id,
      trainer: stream.trainer,
      purpose: request.purpose,
      status: stream.status,
      batch: stream.last_batch,
      acknowledged: stream.acknowledged,
      policy_step: stream.policy_step,
      epoch: stream.epoch,
      row_count: isEndless(request.source) ? null : stream.row_count,
      rows_complete: stream.rows_complete === 1,
      done: stream.status === 'ended' || (isEnd && groupsIn(totals, 'ready') === 0),
      progress: progressOf(counts),
      useful_share: usefulShare(totals),
      length_bias: lengthBias(totals),
      problems: invalid.map(({ row_index, problem }) => ({ row_index, message: problem ?? '' })),
      source_error: stream.source_error,
      created_at: stream.created_at,
    };
  });
}

/** Returns the entries of at most `limit` running streams, newest first, for the status of the service. */
export async function streamLoads(tables: StoreTables, limit: number): Promise<BatchStreamLoad[]> {
  const loads: BatchStreamLoad[] = [];
  for (const stream of await tables.batches.streams({ status: 'running', limit })) {
    const { batch_id: batchId, last_batch: batch } = stream;
    const totals = await tables.batches.countGroups(batchId);
    const last = batch === 0 ? [] : await tables.batches.groupsOfBatches(batchId, batch - 1, batch);
    loads.push({
      batch_id: batchId,
      trainer: stream.trainer,
      purpose: streamRequest(stream).purpose,
      batch,
      running: groupsIn(totals, 'running'),
      ready: groupsIn(totals, 'ready'),
      handed: groupsIn(totals, 'handed'),
      rejected: rejections(totals),
      expired: groupsIn(totals, 'expired'),
      restarted: groupsIn(totals, 'restarted'),
      staleness: last.length === 0 ? null : Math.max(...last.map((group) => stalenessOf(stream, group))),
      warning: warningOf(await tables.batches.newestRejections(batchId, WARNED_REJECTIONS)),
      useful_share: usefulShare(totals),
      ended_tokens: sumOf(totals, ({ state }) => state !== 'running').tokens,
    });
  }
  return loads;
}

/** Returns the number of groups and rows of a stream by state. */
export function progressOf({ groups: totals, unsampledRows, newestRejections }: BatchCounts): BatchProgress {
  const count = (state: BatchGroupTotals['state']): number => groupsIn(totals, state);
  return {
    running: count('running'),
    ready: count('ready'),
    handed: count('handed'),
    rejected: rejections(totals),
    expired: count('expired'),
    restarted: count('restarted'),
    cancelled: count('cancelled'),
    invalid_rows: unsampledRows.invalid,
    retired_rows: unsampledRows.retired,
    warning: warningOf(newestRejections),
  };
}

/**
 * Returns a sentence for a stream whose newest groups were all rejected, so that it may never complete a batch; `null` for any other stream.
 */
function warningOf(rejections: BatchCounts['newestRejections']): string | null {
  const counts = [...rejections.values()];
  if (counts.reduce((sum, count) => sum + count, 0) < WARNED_REJECTIONS) return null;
  const reasons = [...rejections].map(([reason, count]) => `${reason} ${count}`).join(', ');
  return (
    `the newest ${WARNED_REJECTIONS} groups that ended were all rejected (${reasons}); sampling continues while there are rows; if no ` +
    'group can be informative, change `accept` or the rows, or set `retire_after`'
  );
}

function groupsIn(totals: readonly BatchGroupTotals[], state: BatchGroupTotals['state']): number {
  return totals.reduce((sum, total) => sum + (total.state === state ? total.groups : 0), 0);
}

/** Returns the number of rejected groups by reason. */
function rejections(totals: readonly BatchGroupTotals[]): Record<string, number> {
  const rejected = totals.filter(({ state }) => state === 'rejected');
  return Object.fromEntries(rejected.map(({ reason, groups }) => [reason ?? 'unknown', groups]));
}

/**
 * Tokens of the groups that reached a batch or wait for a batch, divided by the tokens of all groups that have ended. `null` when no group
 * with tokens has ended.
 */
function usefulShare(totals: readonly BatchGroupTotals[]): number | null {
  const ended = sumOf(totals, ({ state }) => state !== 'running');
  const useful = sumOf(totals, ({ state }) => state === 'handed' || state === 'ready');
  return ended.tokens === 0 ? null : useful.tokens / ended.tokens;
}

/** Mean tokens of a session in batches, divided by the mean in all groups that were accepted at some time. */
function lengthBias(totals: readonly BatchGroupTotals[]): number | null {
  const handed = sumOf(totals, ({ state }) => state === 'handed');
  const accepted = sumOf(totals, ({ state }) => state === 'handed' || state === 'ready' || state === 'expired');
  if (handed.tokens === 0) return null;
  return handed.tokens / handed.sessions / (accepted.tokens / accepted.sessions);
}

function sumOf(
  totals: readonly BatchGroupTotals[],
  belongs: (total: BatchGroupTotals) => boolean,
): { readonly tokens: number; readonly sessions: number } {
  const chosen = totals.filter(belongs);
  return {
    tokens: chosen.reduce((sum, { sampled_tokens }) => sum + sampled_tokens, 0),
    sessions: chosen.reduce((sum, { sessions }) => sum + sessions, 0),
  };
}
