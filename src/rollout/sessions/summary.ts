import { OUTCOMES, policyOf, unusableReason } from '../../core/outcomes.ts';
import { sessionSummary } from '../../core/session-summary.ts';
import type { Outcome, SessionError, SessionSummary, TaskRequest } from '../../schema/index.ts';
import type { SessionRow } from '../../store/index.ts';

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
  const summary = sessionSummary(row, outcome, { node_id: row.node_id, error, metadata: task.metadata });
  return judged(summary, task);
}
