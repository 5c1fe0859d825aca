import { isoNow } from '../../core/clock.ts';
import { settleAll } from '../../core/promises.ts';
import { transition } from '../../core/session-state.ts';
import type { SessionSummary } from '../../schema/index.ts';
import type { EndedCounts, ResultBlobs, SessionRow, StoreTables } from '../../store/index.ts';
import type { Effects, RolloutContext } from '../context.ts';

export const NO_BLOBS: ResultBlobs = { trajectory: null, completions: null, artifacts: null };

export type Ending = {
  readonly summary: SessionSummary;
  readonly blobs: ResultBlobs;
  /** Ends with this epoch, so that a result of an earlier one is refused. */
  readonly epoch?: number;
  readonly cancelRequested?: boolean;
};

/** Makes one session terminal and gives its result a cursor. Its task's counters are the caller's to raise. */
export async function closeSession(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  ending: Ending,
): Promise<number> {
  const { summary } = ending;
  const ended = {
    status: transition(row.status, summary.status),
    turns: summary.agent?.turns ?? row.turns,
    sampled_tokens: summary.audit?.tokens.sampled ?? row.sampled_tokens,
  };
  const appended = tables.results.append(row, ending.blobs);
  const updated = tables.sessions.update(row.session_id, {
    ...ended,
    epoch: ending.epoch ?? row.epoch,
    lease_expires_ms: null,
    cancel_requested: ending.cancelRequested === true ? 1 : 0,
    unusable: summary.unusable,
    summary: JSON.stringify(summary),
    updated_at: isoNow(context.clock),
  });
  effects.sessionChanged({ ...row, ...ended }, summary);
  effects.topics.add('results');
  const [cursor] = await settleAll([appended, updated]);
  return cursor;
}

/** What a finished session adds to the counters of its task. */
export function countsOf(summary: SessionSummary, hasEvaluator: boolean): EndedCounts {
  const { reward, policy, unusable } = summary;
  return {
    sessions: 1,
    rewardSum: reward ?? 0,
    rewardCount: reward === null ? 0 : 1,
    usable: unusable === null ? 1 : 0,
    // Where rewards are computed, a sample without one has nothing to add to their mean.
    inBaseline: policy.in_baseline && (reward !== null || !hasEvaluator) ? 1 : 0,
  };
}
