import { isoNow, settleAll } from '@floe-rl/core';
import { DROPPED_POLICY, OUTCOMES, policyOf, sessionSummary, transition, unusableReason } from '@floe-rl/core/protocol';
import type { Outcome, SessionError, SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import type { EndedCounts, ResultBlobs, SessionRow } from '../../store/index.ts';
import type { Transaction } from '../transaction.ts';
import { factsOf, indexedWords } from './facts.ts';

export const NO_BLOBS: ResultBlobs = { trajectory: null, completions: null, artifacts: null };

/** How a session ends: the fields of its final state. */
export type Ending = {
  /** The request of the session's task. */
  readonly task: TaskRequest;
  readonly summary: SessionSummary;
  readonly blobs: ResultBlobs;
  /** Text of the session's messages for the full-text search. Default: none. */
  readonly text?: string | undefined;
  /**
   * The epoch to store with the ended session. A higher epoch than the last lease's makes the server refuse a late result of that lease.
   * Default: unchanged.
   */
  readonly epoch?: number;
  /** Whether the session's node must still be notified to stop the session. */
  readonly cancelRequested?: boolean;
};

/**
 * Makes one session terminal, and adds its result and its facts. Resolves to the result's cursor. Does not update the task's counters, which
 * `countEnded` does. The caller holds the session's lock.
 */
export async function closeSession(transaction: Transaction, row: SessionRow, ending: Ending): Promise<number> {
  const { context, tables } = transaction;
  const { summary } = ending;
  const ended = {
    status: transition(row.status, summary.status),
    turns: summary.agent?.turns ?? row.turns,
    sampled_tokens: summary.audit?.tokens.sampled ?? row.sampled_tokens,
  };
  const appended = tables.results.append(row, ending.blobs);
  const facts = factsOf({ ...row, ...ended }, summary, ending.task, context.clock.nowMs());
  const described = tables.facts.add(facts, indexedWords(context.config, ending.text ?? ''));
  const updated = tables.sessions.update(row.session_id, {
    ...ended,
    epoch: ending.epoch ?? row.epoch,
    lease_expires_ms: null,
    cancel_requested: ending.cancelRequested === true ? 1 : 0,
    unusable: summary.unusable,
    summary: JSON.stringify(summary),
    updated_at: isoNow(context.clock),
  });
  transaction.sessionChanged({ ...row, ...ended }, summary);
  transaction.wake('results');
  if (summary.unusable === null) transaction.count('usable_sessions');
  const [cursor] = await settleAll([appended, described, updated]);
  return cursor;
}

/** Returns the amounts that an ended session adds to the counters of its task. */
export function countsOf(summary: SessionSummary, hasEvaluator: boolean): EndedCounts {
  const { reward, policy, unusable } = summary;
  return {
    sessions: 1,
    rewardSum: reward ?? 0,
    rewardCount: reward === null ? 0 : 1,
    usable: unusable === null ? 1 : 0,
    // A sample without a reward cannot contribute to the mean reward of its group when the task has an evaluator.
    inBaseline: policy.in_baseline && (reward !== null || !hasEvaluator) ? 1 : 0,
  };
}

/**
 * Returns the summary that is stored for a delivered session. The policy, and whether the sample is usable, are computed from the task;
 * they replace the values that the node reported. The reward becomes `null` when the outcome allows no evaluation, because an
 * infrastructure failure must never have a reward of 0.
 */
export function applyPolicy(summary: SessionSummary, task: TaskRequest): SessionSummary {
  const policy = summary.dropped === null ? policyOf(summary.outcome, task.outcome_policy) : { ...DROPPED_POLICY };
  const rewarded = OUTCOMES[summary.outcome].evaluated ? {} : { reward: null, reward_components: {} };
  const kept = { ...summary, policy, ...rewarded };
  return { ...kept, unusable: unusableReason(kept, task.evaluator !== null) };
}

/**
 * Creates the summary of a session that the server ends itself, because the session was cancelled or has no attempts left. Its reward is
 * `null`, never 0.
 */
export function serverSummary(
  row: SessionRow,
  task: TaskRequest,
  outcome: Outcome,
  error: SessionError | null,
): SessionSummary {
  const summary = sessionSummary(row, outcome, { node_id: row.node_id, error, metadata: task.metadata });
  return applyPolicy(summary, task);
}
