import type {
  Outcome,
  OutcomePolicy,
  SessionSummary,
  TaskRequest,
  TerminalStatus,
  UnusableReason,
} from '../schema/index.ts';

type OutcomeRow = OutcomePolicy & {
  readonly status: TerminalStatus;
  /** Whether the session is retried after this outcome. True for failures of the infrastructure, which never become a reward of 0. */
  readonly retried: boolean;
  /** Whether the stage POSTRUN computes a reward for the attempt. Otherwise the reward is `null`. */
  readonly evaluated: boolean;
};

/** The task's changes to the default policies of outcomes. */
type OutcomeOverrides = TaskRequest['outcome_policy'];

type UsabilityFields = Pick<SessionSummary, 'outcome' | 'policy' | 'dropped' | 'trainable_tokens' | 'reward'>;

/**
 * All outcomes that a session can have. Each row gives the session's status, and what happens by default to its traces, retries and
 * evaluation.
 */
export const OUTCOMES: Readonly<Record<Outcome, OutcomeRow>> = {
  completed: { status: 'COMPLETED', use: 'train', in_baseline: true, retried: false, evaluated: true },
  truncated_context: { status: 'COMPLETED', use: 'train', in_baseline: true, retried: false, evaluated: true },
  truncated_turns: { status: 'COMPLETED', use: 'train', in_baseline: true, retried: false, evaluated: true },
  agent_timeout: { status: 'TIMEOUT', use: 'mask', in_baseline: true, retried: false, evaluated: true },
  agent_error: { status: 'ERROR', use: 'mask', in_baseline: true, retried: false, evaluated: true },
  env_error: { status: 'ERROR', use: 'drop', in_baseline: false, retried: false, evaluated: false },
  verifier_error: { status: 'ERROR', use: 'drop', in_baseline: false, retried: false, evaluated: false },
  engine_error: { status: 'ERROR', use: 'drop', in_baseline: false, retried: true, evaluated: false },
  infra_error: { status: 'ERROR', use: 'drop', in_baseline: false, retried: true, evaluated: false },
  cancelled: { status: 'CANCELLED', use: 'drop', in_baseline: false, retried: false, evaluated: false },
  no_completions: { status: 'ERROR', use: 'drop', in_baseline: false, retried: false, evaluated: false },
};

/** Returns how sessions with an outcome are used in training: the outcome's default policy, changed by the task's overrides. */
export function policyOf(outcome: Outcome, overrides: OutcomeOverrides = {}): OutcomePolicy {
  const defaults = OUTCOMES[outcome];
  const override = overrides[outcome];
  return { use: override?.use ?? defaults.use, in_baseline: override?.in_baseline ?? defaults.in_baseline };
}

/**
 * Returns how many times a session is retried after this outcome. Returns Infinity when the only limit is the task's `max_attempts`, which
 * limits all attempts of a session together.
 */
export function retriesAfter(outcome: Outcome, overrides: OutcomeOverrides): number {
  return overrides[outcome]?.retries ?? (OUTCOMES[outcome].retried ? Number.POSITIVE_INFINITY : 0);
}

/** Policy for a sample that a post-run hook dropped. It replaces the default of the outcome and the task's overrides. */
export const DROPPED_POLICY: OutcomePolicy = { use: 'drop', in_baseline: false };

/** Returns the reason why a finished session cannot be trained on; `null` when it can. */
export function unusableReason(
  { outcome, policy, dropped, trainable_tokens: tokens, reward }: UsabilityFields,
  hasEvaluator: boolean,
): UnusableReason | null {
  if (dropped !== null) return 'dropped';
  if (policy.use !== 'train') return outcome;
  if (tokens === 0) return 'no_tokens';
  return hasEvaluator && reward === null ? 'no_reward' : null;
}
