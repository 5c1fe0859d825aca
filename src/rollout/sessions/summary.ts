import { OUTCOMES, policyOf, unusableReason } from '../../core/outcomes.ts';
import type { Outcome, SessionError, SessionSummary, TaskRequest } from '../../schema/index.ts';
import type { SessionRow } from '../../store/index.ts';

const NO_TIMING = {
  queued_ms: null,
  init_ms: null,
  ready_ms: null,
  running_ms: null,
  postrun_queue_ms: null,
  build_ms: null,
  eval_ms: null,
  postrun_ms: null,
  total_ms: 0,
} as const;

/**
 * A node's summary as it is stored: policy and use by the task, whatever the node said, and no reward where nothing can
 * have been evaluated, so that a failure of the infrastructure is never a reward of 0.
 */
export function judged(summary: SessionSummary, task: TaskRequest): SessionSummary {
  const policy = policyOf(summary.outcome, task.outcome_policy);
  const reward = OUTCOMES[summary.outcome].evaluated ? summary.reward : null;
  const kept = { ...summary, policy, reward };
  return { ...kept, unusable: unusableReason(kept, task.evaluator !== null) };
}

/** The summary of a session that ended without a result from a node: cancelled, or given up. Its reward is null, never 0. */
export function serverSummary(
  row: SessionRow,
  task: TaskRequest,
  outcome: Outcome,
  error: SessionError | null,
): SessionSummary {
  const summary: SessionSummary = {
    session_id: row.session_id,
    task_id: row.task_id,
    sample_index: row.sample_index,
    attempt: row.attempt,
    epoch: row.epoch,
    status: OUTCOMES[outcome].status,
    outcome,
    policy: policyOf(outcome),
    reward: null,
    reward_details: {},
    trace_count: 0,
    trainable_tokens: 0,
    completion_count: 0,
    audit: null,
    timing: { ...NO_TIMING },
    agent: null,
    artifacts: null,
    node_id: row.node_id,
    error,
    unusable: null,
    metadata: task.metadata,
  };
  return judged(summary, task);
}
