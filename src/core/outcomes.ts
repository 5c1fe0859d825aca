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
  /** The infrastructure failed: the session is retried, and the failure is never a reward of 0. */
  readonly retried: boolean;
  /** Whether POSTRUN evaluates the attempt; otherwise the reward is `null`. */
  readonly evaluated: boolean;
};

/** The changes that a task makes to the default policies. */
type OutcomeOverrides = TaskRequest['outcome_policy'];

type UsabilityFields = Pick<SessionSummary, 'outcome' | 'policy' | 'trainable_tokens' | 'reward'>;

/** Every reason why a session can end, with its status and default policy. The list is closed. */
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

/** How an outcome is used in training: its default policy with the task's overrides. */
export function policyOf(outcome: Outcome, overrides: OutcomeOverrides = {}): OutcomePolicy {
  const defaults = OUTCOMES[outcome];
  const override = overrides[outcome];
  return { use: override?.use ?? defaults.use, in_baseline: override?.in_baseline ?? defaults.in_baseline };
}

/**
 * How many times a session is retried after this outcome. Infinity when only the task's `max_attempts`, which bounds all attempts together,
 * limits it.
 */
export function retriesAfter(outcome: Outcome, overrides: OutcomeOverrides): number {
  return overrides[outcome]?.retries ?? (OUTCOMES[outcome].retried ? Number.POSITIVE_INFINITY : 0);
}

/** Why a finished sample cannot be trained on; `null` when it can. */
export function unusableReason(
  { outcome, policy, trainable_tokens: tokens, reward }: UsabilityFields,
  hasEvaluator: boolean,
): UnusableReason | null {
  if (policy.use !== 'train') return outcome;
  if (tokens === 0) return 'no_tokens';
  return hasEvaluator && reward === null ? 'no_reward' : null;
}
