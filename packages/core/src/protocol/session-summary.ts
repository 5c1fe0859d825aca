import type { Outcome, SessionSummary, SessionTiming } from '../schema/index.ts';
import { DROPPED_POLICY, OUTCOMES, policyOf } from './outcomes.ts';

/** The fields that identify the attempt that a summary describes. A lease and a stored session both have these fields. */
type SummarizedAttempt = Pick<SessionSummary, 'session_id' | 'task_id' | 'sample_index' | 'attempt' | 'epoch'>;

/** The fields of a summary that the caller must pass, because they follow neither from the attempt's identity nor from its outcome. */
export type SummaryFields = Omit<
  SessionSummary,
  keyof SummarizedAttempt | 'status' | 'outcome' | 'policy' | 'unusable'
>;

/** The times of a session that reached no node. */
export const NO_TIMING: SessionTiming = {
  queued_ms: null,
  init_ms: null,
  ready_ms: null,
  running_ms: null,
  postrun_queue_ms: null,
  build_ms: null,
  eval_ms: null,
  postrun_ms: null,
  total_ms: 0,
};

/**
 * Summarizes an attempt that ended with `outcome`. The status, and the policy for using the sample in training, are the outcome's defaults.
 * The reward is `null` and has no components for an outcome that is not evaluated. Fields that `fields` lacks get the values of a session that never reached a
 * node. When the server accepts the summary, it sets `unusable` and applies the policy that the task may have set for the outcome.
 */
export function sessionSummary(
  attempt: SummarizedAttempt,
  outcome: Outcome,
  fields: Partial<SummaryFields>,
): SessionSummary {
  const { status, evaluated } = OUTCOMES[outcome];
  return {
    session_id: attempt.session_id,
    task_id: attempt.task_id,
    sample_index: attempt.sample_index,
    attempt: attempt.attempt,
    epoch: attempt.epoch,
    status,
    outcome,
    policy: (fields.dropped ?? null) === null ? policyOf(outcome) : { ...DROPPED_POLICY },
    reward: evaluated ? (fields.reward ?? null) : null,
    reward_components: evaluated ? (fields.reward_components ?? {}) : {},
    reward_details: fields.reward_details ?? {},
    dropped: fields.dropped ?? null,
    trace_count: fields.trace_count ?? 0,
    trainable_tokens: fields.trainable_tokens ?? 0,
    completion_count: fields.completion_count ?? 0,
    policy_versions: fields.policy_versions ?? null,
    audit: fields.audit ?? null,
    calls: fields.calls ?? null,
    cost: fields.cost ?? null,
    timing: fields.timing ?? { ...NO_TIMING },
    agent: fields.agent ?? null,
    artifacts: fields.artifacts ?? null,
    egress: fields.egress ?? null,
    runtime: fields.runtime ?? null,
    node_id: fields.node_id ?? null,
    error: fields.error ?? null,
    unusable: null,
    metadata: fields.metadata ?? {},
  };
}
